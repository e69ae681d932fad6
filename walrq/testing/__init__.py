"""Fakes and oracles, for walrq's own tests and for those of its users. Nothing else in walrq imports it."""
