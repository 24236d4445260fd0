"""A name may be written in many ways, and a comparison may miss one."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Write the hidden name into Host with userinfo, brackets, NUL, percent signs, tabs or other letters.",
    claim="E3",
    defences=("authority check, ports agreement",),
    stopped_by=("authority_mismatch", "host", "field", "authority", "authority_"),
    variants={
        "userinfo": "{packages}@{hidden}",
        "a NUL": "{packages}\x00.{hidden}",
        "percent": "{packages}%2e{hidden}",
        "a slash": "{hidden}/{packages}",
        "a hash": "{hidden}#{packages}",
        "a question mark": "{hidden}?{packages}",
        "brackets": "[{hidden}]",
        "a scheme": "https://{hidden}",
        "two ports": "{packages}:443:8443",
        "a port with a sign": "{packages}:+443",
        "a semicolon": "{packages};{hidden}",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    host = what.format(packages=case.ground.packages, hidden=case.ground.hidden)
    case.tls(case.ground.packages, f"GET /simple/{case.token}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
