"""`doctor --fix` on ClickHouse: views of another version are told and made again."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

from spanloop.infra import doctor_fix
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.doctor import examine
from spanloop.infra.doctor_facts import gather
from spanloop.infra.facts import Facts, Finding
from spanloop.infra.settings import Settings


def asked(settings: Settings) -> Facts:
    return gather(settings, longest_attempt_s=1, round_s=60)  # the machine may be busy


def tables(facts: Facts) -> Finding:
    (told,) = (f for f in examine(facts) if f.check == "tables")
    return told


def test_the_fix_makes_old_views_again(clickhouse_url: str) -> None:
    database = f"t{uuid4().hex[:12]}"
    settings = Settings(clickhouse_url=clickhouse_url, clickhouse_database=database)
    with closing(connect(settings)) as client:
        migrate(client, database)
        assert tables(asked(settings)).status == "ok"
        client.command("INSERT INTO migrations (version, name, checksum) VALUES (0, 'views.sql', 'of another version')")
        client.command("DROP VIEW v_spans")
        facts = asked(settings)
        assert tables(facts).found == "not applied: views.sql"
        assert doctor_fix.fix(settings, facts) == [f"applied views.sql to {database!r}"]
        assert client.rows("SELECT * FROM v_spans") == []
        assert tables(asked(settings)).status == "ok"
        client.command(f"DROP DATABASE {database}")
