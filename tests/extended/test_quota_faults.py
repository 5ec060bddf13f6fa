"""Quotas when the service is killed."""

from tests.control import in_one_window, new_organization
from tests.http.test_quotas import TINY, ask, engine_time, use_up
from tests.service import new_data_dir, remove, start_service


def test_a_restart_forgets_no_permit_that_was_used() -> None:
    """The count is the installation's, not a worker's."""
    data_dir = new_data_dir()
    tiers = ("--tiers", f"tiny={TINY}, unlimited", "--default-tier", "tiny")
    services = [start_service(data_dir, *tiers)]
    operator_key = services[0].key

    def restart() -> int:
        organization = new_organization(services[-1], "tiny")
        with services[-1].client(organization.key) as client:
            use_up(client)
        services[-1].kill()
        services.append(start_service(data_dir, *tiers))
        services[-1].key = operator_key
        with services[-1].client(organization.key) as client:
            return ask(client).status

    try:
        assert in_one_window(lambda: engine_time(services[-1]), restart) == 429
    finally:
        assert services[-1].stop() == 0
        remove(data_dir)
