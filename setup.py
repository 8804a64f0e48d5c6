"""What pyproject.toml cannot say: the wheel carries configs/ as depthmup/configs (see depthmup/find_config.py)."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["depthmup", "depthmup.*"]), "depthmup.configs"],
    package_dir={"depthmup.configs": "configs"},
)
