"""Who gave which row its sequence, as the database server itself sees it: by the name of the connection."""

from psycopg.sql import SQL, Identifier

from streamagent.testing import Write

AUDIT = """
CREATE TABLE {schema}.audit (
    number BIGINT GENERATED ALWAYS AS IDENTITY, session TEXT, id TEXT, fence BIGINT, writer TEXT
);
CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.audit (session, id, fence, writer)
    VALUES (NEW.session, NEW.id, NEW.fence, current_setting('application_name'));
    RETURN NULL;
END $$;
CREATE TRIGGER note_new AFTER INSERT ON {schema}.messages
    FOR EACH ROW WHEN (NEW.sequence IS NOT NULL) EXECUTE FUNCTION {schema}.note();
CREATE TRIGGER note_admitted AFTER UPDATE OF sequence ON {schema}.messages
    FOR EACH ROW WHEN (OLD.sequence IS NULL AND NEW.sequence IS NOT NULL) EXECUTE FUNCTION {schema}.note();
"""


def audit(server, schema="streamagent"):
    """Let a server write it down, for a schema that exists; each writer's URL has an `application_name` of its own."""
    server.execute(SQL(AUDIT).format(schema=Identifier(schema)))


def writes(server, schema="streamagent"):
    """Return what was written down, by session: the owner of a write is its connection's name."""
    rows = server.execute(
        SQL("SELECT session, id, fence, writer FROM {}.audit ORDER BY number").format(Identifier(schema))
    )
    found = {}
    for session, id_, fence, writer in rows:
        found.setdefault(session, []).append(Write(owner=writer, fence=fence, id=id_))
    return found
