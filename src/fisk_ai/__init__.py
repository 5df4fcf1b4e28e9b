"""Agent runs that outlive their process."""
