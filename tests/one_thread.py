"""One thread for each numerical library: the nursery forks, and ranks outnumber processors anyway.

To be imported before NumPy, which reads these while it loads.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
