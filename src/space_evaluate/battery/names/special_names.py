"""Clouds and networks have names of their own for what guests should not reach."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask for localhost, metadata services, the host, the proxy that finds itself, and reverse names.",
    claim="E3",
    defences=("names: canon", "verdicts: every layer, every reading"),
    stopped_by=("name_not_allowed", "dns_malformed", "name_invalid", "no_policy", "dns_type"),
    policies=BOTH,
    variants={
        "localhost": "localhost",
        "metadata": "metadata.google.internal",
        "instance-data": "instance-data.ec2.internal",
        "host": "host.docker.internal",
        "wpad": "wpad.example.com",
        "reverse": "1.0.0.10.in-addr.arpa",
        "gateway": "_gateway",
    },
)


def attack(case: Case, what: Any) -> None:
    case.query(what)
