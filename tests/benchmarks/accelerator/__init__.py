"""A day with an accelerator: what is to be measured there, the most valuable first, in pieces that go on where they were."""
