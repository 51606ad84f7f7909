"""Builds pump.pyx: ``python setup.py build_ext --inplace``."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import shmring

setup(
    name="pump",
    ext_modules=cythonize([Extension("pump", ["pump.pyx"], include_dirs=[shmring.get_include()])]),
)
