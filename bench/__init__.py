"""What a journal costs, beside the least that the same promise can cost on this machine."""
