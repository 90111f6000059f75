"""Package heathaze from lib/; the runtime's own parts (Spark, Delta, torch, Horovod) are extras."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'__version__ = "([^"]+)"', Path(__file__).with_name("lib").joinpath("heathaze/__init__.py").read_text())
assert VERSION, "lib/heathaze/__init__.py must define __version__"

setup(
    name="heathaze",
    version=VERSION.group(1),
    description="Density maps from location events with a user-level differential privacy guarantee",
    long_description=Path(__file__).with_name("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    package_dir={"": "lib"},
    packages=find_packages("lib"),
    package_data={"heathaze": ["py.typed", "evaluate/*.csv"]},
    python_requires=">=3.11",
    install_requires=[
        "cryptography",
        "deltalake>=1.6",
        "great-expectations>=1.24,<2",
        "matplotlib",
        "numpy>=2",
        "pandas>=2.2,<3",
        "pyarrow>=17",
        "scipy>=1.13",
    ],
    extras_require={
        "spark": ["pyspark>=4.0,<4.1", "delta-spark>=4.0,<4.1"],
        "train": ["torch>=2.4"],
        "horovod": ["horovod==0.28.1"],
        "paramselect": ["scikit-learn"],
        "test": ["databricks-bundles", "hypothesis", "nbclient", "pytest", "pytest-timeout", "pyyaml"],
    },
    entry_points={"console_scripts": ["heathaze=heathaze.cli:command"]},
)
