"""Measurements on an accelerator, the most valuable first, in resumable parts."""
