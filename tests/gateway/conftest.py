"""Say with which SDK these tests run: one of them runs the others with another."""

import openai


def pytest_report_header() -> str:
    return f"openai {openai.__version__}"
