"""Builds heat.c: ``python setup.py build_ext --inplace``."""

from setuptools import Extension, setup

import shmring.capi

setup(
    name="heat",
    ext_modules=[Extension("heat", ["heat.c"], include_dirs=[shmring.capi.get_include()])],
)
