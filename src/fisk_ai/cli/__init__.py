"""The command line: words and exit codes. What they mean happens below.

Commands are loaded when they are named, so that `session ls` loads no model code.
"""
