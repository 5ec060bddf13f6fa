"""What tenants see and reach of each other on a server of the user's own that they share: the tests of cells, there."""

from tests.hostile.test_tenants_escapes import names, test_other_tenants_are_out_of_reach
from tests.hostile.test_tenants_names import *  # noqa: F403 - its tests and fixtures
from tests.hostile.test_tenants_shared import service
from tests.service import needs_bundled
from tests.tenants import make_tenant_fixture

__all__ = ["names", "service", "test_other_tenants_are_out_of_reach"]

pytestmark = needs_bundled

one = make_tenant_fixture("service", "tenant-one")
two = make_tenant_fixture("service", "tenant-two", "create table kept (a int)")
