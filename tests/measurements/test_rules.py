"""The study of rules names constants that exist, and switches off what it says."""

from importlib import import_module

import pytest

from measurements.rules import PACKAGE, RULES, Rule, switch_off


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_names_constants_that_exist(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in rule.constants:
        module, _, name = (PACKAGE + path).rpartition(".")
        monkeypatch.setattr(import_module(module), name, getattr(import_module(module), name))  # put back afterwards
    switch_off(rule)
    for path, value in rule.constants.items():
        module, _, name = (PACKAGE + path).rpartition(".")
        assert getattr(import_module(module), name) == value


def test_a_constant_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"no fedkad\.edge\.alarms\.policy\.OLD"):
        switch_off(Rule("an old one", {"edge.alarms.policy.OLD": 1.0}))
