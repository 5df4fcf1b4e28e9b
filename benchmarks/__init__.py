"""Tests that put fisk-ai beside other libraries; they need those libraries, see README.md."""
