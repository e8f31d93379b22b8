"""How property tests run here."""

from hypothesis import HealthCheck, settings

# A machine that is busy with other things is no reason to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
