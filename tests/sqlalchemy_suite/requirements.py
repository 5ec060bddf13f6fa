"""What the dialect can do, and for each thing that it cannot the reason; docs/sqlalchemy.md lists them."""

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

OPEN = [
    "aggregate_order_by",
    "array_type",
    "autocommit",
    "boolean_col_expressions",
    "check_constraint_reflection",
    "column_collation_reflection",
    "comment_reflection",
    "comment_reflection_full_unicode",
    "computed_columns",
    "computed_columns_reflect_persisted",
    "computed_columns_stored",
    "computed_columns_virtual",
    "constraint_comment_reflection",
    "create_or_replace_view",
    "create_table_as",
    "create_temp_table_as",
    "cross_schema_fk_reflection",
    "ctes",
    "ctes_on_dml",
    "ctes_with_update_delete",
    "ctes_with_values",
    "date_historic",
    "datetime_historic",
    "datetime_interval",
    "datetime_literals",
    "datetime_timezone",
    "datetime_timezone_historic",
    "deferrable_fks",
    "delete_from",
    "except_",
    "expression_server_defaults",
    "fetch_expression",
    "fetch_first",
    "fetch_no_order_by",
    "fetch_offset_with_options",
    "fetch_ties",
    "fk_constraint_option_reflection_ondelete_noaction",
    "fk_constraint_option_reflection_ondelete_restrict",
    "fk_constraint_option_reflection_onupdate_restrict",
    "float_or_double_precision_behaves_generically",
    "foreign_key_constraint_name_reflection",
    "foreign_key_constraint_option_reflection_ondelete",
    "foreign_key_constraint_option_reflection_onupdate",
    "identity_columns",
    "identity_columns_standard",
    "implicit_default_schema",
    "index_ddl_if_exists",
    "index_reflects_included_columns",
    "indexes_check_column_order",
    "indexes_with_expressions",
    "infinity_floats",
    "inline_check_constraint_reflection",
    "intersect",
    "isolation_level",
    "json_type",
    "legacy_unconditional_json_extract",
    "materialized_views",
    "mod_operator_as_percent_sign",
    "non_updating_cascade",
    "nullsordering",
    "percent_schema_names",
    "precision_numerics_enotation_small",
    "precision_numerics_many_significant_digits",
    "precision_numerics_retains_significant_digits",
    "reflect_indexes_with_expressions",
    "reflect_table_options",
    "reflect_tables_no_columns",
    "reflects_pk_names",
    "regexp_match",
    "regexp_replace",
    "repeated_column_foreign_keys",
    "savepoints",
    "schema_create_delete",
    "server_defaults",
    "skip_autocommit_rollback",
    "supports_bitwise_and",
    "supports_bitwise_not",
    "supports_bitwise_or",
    "supports_bitwise_shift",
    "supports_bitwise_xor",
    "supports_distinct_on",
    "table_ddl_if_exists",
    "table_value_constructor",
    "time_timezone",
    "timestamp_microseconds",
    "tuple_in",
    "unicode_ddl",
    "unique_constraints_reflect_as_index",
    "update_from",
    "uuid_data_type",
    "views",
    "window_functions",
    "window_range",
    "window_range_non_numeric",
    "window_range_numeric",
]

_SESSION = "A temporary table ends with its transaction, since no connection is kept between transactions."
_TWO_PHASE = "The service commits in two phases by itself."
_ELSEWHERE = "PostgreSQL does not do this."
ONE_LEVEL = "There is no isolation level beside SERIALIZABLE and AUTOCOMMIT."
CLOSED = {
    "default_schema_name_switch": "A SET lasts for its transaction, since no connection is kept between transactions.",
    "has_temp_table": _SESSION,
    "temp_table_comment_reflection": _SESSION,
    "temp_table_names": _SESSION,
    "temp_table_reflection": _SESSION,
    "temporary_tables": _SESSION,
    "temporary_views": _SESSION,
    "two_phase_transactions": _TWO_PHASE,
    "computed_columns_default_persisted": _ELSEWHERE,
    "dbapi_lastrowid": _ELSEWHERE,
    "fetch_percent": _ELSEWHERE,
    "foreign_keys_reflect_as_index": _ELSEWHERE,
    "json_deserializer_binary": _ELSEWHERE,
    "materialized_views_reflect_pk": _ELSEWHERE,
    "nvarchar_types": _ELSEWHERE,
    "reflect_indexes_with_ascdesc_as_expression": _ELSEWHERE,
    "repeated_remote_col_foreign_keys": _ELSEWHERE,
    "unique_index_reflect_as_unique_constraints": _ELSEWHERE,
}


class Requirements(SuiteRequirements):
    def get_order_by_collation(self, config: Any) -> str:
        return "POSIX"


def _open() -> property:
    return property(lambda _self: exclusions.open())  # type: ignore[no-untyped-call]


def _closed(reason: str) -> property:
    return property(lambda _self: exclusions.skip_if(lambda: True, reason))  # type: ignore[no-untyped-call]


for _name in OPEN:
    setattr(Requirements, _name, _open())
for _name, _reason in CLOSED.items():
    setattr(Requirements, _name, _closed(_reason))
