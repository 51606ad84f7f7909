"""From a launcher's environment to connected ranks: rendezvous, calibration, tuning."""
