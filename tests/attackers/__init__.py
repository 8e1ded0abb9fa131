"""Those who do not keep to the protocol, and what the tests with real processes share."""
