"""What handlers work with: made once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass

from space.config.settings import Settings
from space.control.activity import Activity
from space.control.audit import AuditLog
from space.control.credentials import Credentials
from space.control.e2b.face import Face
from space.control.egress_figures import EgressFigures
from space.control.events import EventLog
from space.control.exposing import Exposing
from space.control.keys import KeyRing
from space.control.link import NodeLink
from space.control.prometheus import Figures
from space.control.quotas import Quotas
from space.control.sandboxes import Sandboxes
from space.control.templates import Templates
from space.control.webhooks import Webhooks


@dataclass(frozen=True, slots=True)
class Services:
    """The parts. document: the OpenAPI document's bytes."""

    settings: Settings
    keys: KeyRing
    link: NodeLink
    sandboxes: Sandboxes
    figures: Figures
    document: bytes
    version: str
    activity: Activity
    events: EventLog
    quotas: Quotas
    webhooks: Webhooks
    audit: AuditLog
    egress: EgressFigures
    templates: Templates
    credentials: Credentials
    e2b: Face
    exposing: Exposing

    def stopping(self) -> None:
        """The server ends: those who wait or follow are told now."""
        self.sandboxes.stopping()
        self.events.close()
