"""Replaces the source's roles by the copy's own wherever a copied database names them: owners, rights, default rights,
policies.

This runs with the rights of both databases' roles and no others, by statements that any owner may send.
"""

from typing import Final

from tuplegate.engine.postgres.rights.roles import name_roles

_REWRITE: Final = r"""
DO $$
DECLARE
  former_roles oid[] := ARRAY[{former}]::regrole[]::oid[];
  later_roles oid[] := ARRAY[{later}]::regrole[]::oid[];
  item record;
BEGIN
  FOR item IN
    WITH granted (object, owner, privilege, acl) AS (
      SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass::text, relowner, '%s', relacl
        FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p', 'f', 'S')
      UNION ALL
      SELECT 'TABLE ' || c.oid::regclass::text, c.relowner, '%s (' || replace(quote_ident(a.attname), '%', '%%') || ')',
             a.attacl
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE a.attacl IS NOT NULL AND NOT a.attisdropped
      UNION ALL SELECT 'ROUTINE ' || oid::regprocedure::text, proowner, '%s', proacl FROM pg_proc
      UNION ALL SELECT 'TYPE ' || oid::regtype::text, typowner, '%s', typacl FROM pg_type
      UNION ALL SELECT 'SCHEMA ' || quote_ident(nspname), nspowner, '%s', nspacl FROM pg_namespace
      UNION ALL SELECT 'LARGE OBJECT ' || oid::text, lomowner, '%s', lomacl FROM pg_largeobject_metadata
    )
    SELECT g.object, format(g.privilege, a.privilege_type) AS privilege, a.is_grantable, a.grantee
      FROM granted g CROSS JOIN LATERAL aclexplode(g.acl) a
     WHERE g.owner = ANY (later_roles) AND a.grantee = ANY (former_roles)
  LOOP
    EXECUTE format('GRANT %s ON %s TO %s%s', item.privilege, item.object,
                   later_roles[array_position(former_roles, item.grantee)]::regrole,
                   CASE WHEN item.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', item.privilege, item.object, item.grantee::regrole);
  END LOOP;

  -- What differs from the engine's own defaults is given to, or taken from, the later role, and undone for the former.
  FOR item IN
    WITH entry AS (
      SELECT d.defaclrole AS owner, d.defaclobjtype AS kind, d.defaclnamespace AS place, a.grantee,
             a.privilege_type AS privilege, a.is_grantable, true AS given
        FROM pg_default_acl d CROSS JOIN LATERAL aclexplode(d.defaclacl) a
    ), hard_wired AS (
      SELECT d.defaclrole AS owner, d.defaclobjtype AS kind, d.defaclnamespace AS place, a.grantee,
             a.privilege_type AS privilege, a.is_grantable, false AS given
        FROM pg_default_acl d
             CROSS JOIN LATERAL aclexplode(acldefault(CASE d.defaclobjtype WHEN 'S' THEN 's' ELSE d.defaclobjtype END,
                                                      d.defaclrole)) a
       WHERE d.defaclnamespace = 0
    ), differs AS (
      SELECT * FROM entry e WHERE NOT EXISTS (
        SELECT FROM hard_wired h WHERE (h.owner, h.kind, h.place, h.grantee, h.privilege)
                                     = (e.owner, e.kind, e.place, e.grantee, e.privilege))
      UNION ALL
      SELECT * FROM hard_wired h WHERE NOT EXISTS (
        SELECT FROM entry e WHERE (h.owner, h.kind, h.place, h.grantee, h.privilege)
                                = (e.owner, e.kind, e.place, e.grantee, e.privilege))
    )
    SELECT d.*, CASE WHEN d.place = 0 THEN '' ELSE ' IN SCHEMA ' || quote_ident(n.nspname) END AS in_schema,
           CASE d.kind WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES' WHEN 'T' THEN 'TYPES'
                       WHEN 'n' THEN 'SCHEMAS' ELSE 'LARGE OBJECTS' END AS objects,
           CASE WHEN d.grantee = 0 THEN 'PUBLIC' ELSE d.grantee::regrole::text END AS former_name,
           CASE WHEN d.grantee = 0 THEN 'PUBLIC'
                WHEN d.grantee = ANY (former_roles)
                THEN later_roles[array_position(former_roles, d.grantee)]::regrole::text END AS later_name
      FROM differs d LEFT JOIN pg_namespace n ON n.oid = d.place
     WHERE d.owner = ANY (former_roles)
  LOOP
    IF item.later_name IS NOT NULL THEN
      EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %s%s %s %s ON %s %s %s%s',
                     later_roles[array_position(former_roles, item.owner)]::regrole, item.in_schema,
                     CASE WHEN item.given THEN 'GRANT' ELSE 'REVOKE' END, item.privilege, item.objects,
                     CASE WHEN item.given THEN 'TO' ELSE 'FROM' END, item.later_name,
                     CASE WHEN item.given AND item.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END IF;
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %s%s %s %s ON %s %s %s', item.owner::regrole, item.in_schema,
                   CASE WHEN item.given THEN 'REVOKE' ELSE 'GRANT' END, item.privilege, item.objects,
                   CASE WHEN item.given THEN 'FROM' ELSE 'TO' END, item.former_name);
  END LOOP;

  FOR item IN SELECT polname, polrelid, polroles FROM pg_policy WHERE polroles && former_roles LOOP
    EXECUTE format('ALTER POLICY %I ON %s TO %s', item.polname, item.polrelid::regclass, (
      SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC'
                             WHEN r = ANY (former_roles)
                             THEN later_roles[array_position(former_roles, r)]::regrole::text
                             ELSE r::regrole::text END, ', ')
        FROM unnest(item.polroles) r));
  END LOOP;
END $$
"""


def write_rewriting(source: str, name: str) -> list[str]:
    """Return statements for the copy; a role with the rights of both databases' roles runs them. Each may be
    repeated."""
    former, later = name_roles(source), name_roles(name)
    return [
        *(f"REASSIGN OWNED BY {old} TO {new}" for old, new in zip(former, later, strict=True)),
        _REWRITE.replace("{former}", _list_literals(former)).replace("{later}", _list_literals(later)),
    ]


def _list_literals(roles: tuple[str, ...]) -> str:
    return ", ".join(f"'{role}'" for role in roles)
