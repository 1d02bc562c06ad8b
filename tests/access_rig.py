"""The access rules of `infra.access` given to users of a broker that enforces them, one user a part."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# confluent_kafka.admin's names are public, by its documentation; its stub leaves the futures' type open

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from spanloop.infra.access import PARTS, Access
from spanloop.infra.real_kafka import RealKafka
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import TOPICS

USERS = {part: re.sub(r"\W+", "-", part) for part in PARTS}
OTHERS = {
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
}
Rule = tuple[ResourceType, str, AclOperation]


def rules(prefix: str, access: Access) -> Iterable[Rule]:
    """What is allowed on what; a name that ends in * is meant as a prefix."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    yield from ((topic, t.full(prefix), AclOperation.READ) for t in access.reads)
    yield from ((topic, t.full(prefix), AclOperation.WRITE) for t in access.writes)
    yield from ((group, f"{prefix}-{name}", AclOperation.READ) for name in access.joins)
    yield from ((group, f"{prefix}-{name}", AclOperation.DESCRIBE) for name in access.asks)
    names = (f"{prefix}-{name}" for name in access.transactional)
    yield from ((ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE) for name in names)
    yield from ((topic, t.full(prefix), OTHERS[other]) for other in access.others for t in TOPICS.values())


def allow(kafka: RealKafka, prefix: str, parts: Mapping[str, Access]) -> None:
    """Gives the users of parts what these may do to the topics, groups and ids of a prefix."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    wanted = [_acl(USERS[part], rule) for part, access in parts.items() for rule in rules(prefix, access)]
    for done in admin.create_acls(wanted).values():
        done.result()


def _acl(user: str, rule: Rule) -> AclBinding:
    kind, name, operation = rule
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(kind, name.rstrip("*"), pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def settings_of(part: str, kafka: RealKafka, common: Settings) -> Settings:
    """A part's settings: its user, on the listener that asks for one."""
    return common.with_(bootstrap=kafka.sasl_bootstrap, kafka=kafka.security("PLAIN", USERS[part]))
