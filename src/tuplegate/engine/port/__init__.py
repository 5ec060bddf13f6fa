"""The port: what the planes need of an engine, in words that any SQL engine can fill.

A plane gives a `Target` (which database, with which rights) and a `Statement`, and gets rows that are JSON already:
only the engine's side knows the types, so it encodes the values. Every failure is an exception of `failures`; none of
them names a driver.

One module for each subject: `shapes` (the form of rows), `work` (the records of every request), `results`,
`transactions`, `open_transactions`, `failures`, `wire`, `reports` (an engine's reports about itself), `databases`,
`engine` (the port itself) and `installing` (the preparation of an engine before its use). Records are msgspec structs,
which cost a tenth of a frozen dataclass.
"""

from tuplegate.engine.port.databases import FIRST_ENGINE as FIRST_ENGINE
from tuplegate.engine.port.databases import AllDatabases as AllDatabases
from tuplegate.engine.port.databases import Databases as Databases
from tuplegate.engine.port.databases import EngineDatabases as EngineDatabases
from tuplegate.engine.port.databases import Following as Following
from tuplegate.engine.port.databases import ServerDatabases as ServerDatabases
from tuplegate.engine.port.engine import Engine as Engine
from tuplegate.engine.port.engine import EngineSession as EngineSession
from tuplegate.engine.port.engine import Lock as Lock
from tuplegate.engine.port.engine import OpenEngine as OpenEngine
from tuplegate.engine.port.engine import Snapshots as Snapshots
from tuplegate.engine.port.failures import AlreadyRunning as AlreadyRunning
from tuplegate.engine.port.failures import BadPosition as BadPosition
from tuplegate.engine.port.failures import BadUrl as BadUrl
from tuplegate.engine.port.failures import CommitsRefused as CommitsRefused
from tuplegate.engine.port.failures import Conflict as Conflict
from tuplegate.engine.port.failures import CopyRefused as CopyRefused
from tuplegate.engine.port.failures import DumpFailed as DumpFailed
from tuplegate.engine.port.failures import DumpStopped as DumpStopped
from tuplegate.engine.port.failures import EmptyStatement as EmptyStatement
from tuplegate.engine.port.failures import EngineBusy as EngineBusy
from tuplegate.engine.port.failures import EngineFailure as EngineFailure
from tuplegate.engine.port.failures import EngineLost as EngineLost
from tuplegate.engine.port.failures import EngineRefused as EngineRefused
from tuplegate.engine.port.failures import EngineUnavailable as EngineUnavailable
from tuplegate.engine.port.failures import MoveFailed as MoveFailed
from tuplegate.engine.port.failures import MultipleStatements as MultipleStatements
from tuplegate.engine.port.failures import NoProgress as NoProgress
from tuplegate.engine.port.failures import NotInTime as NotInTime
from tuplegate.engine.port.failures import NotSupported as NotSupported
from tuplegate.engine.port.failures import OutcomeUnknown as OutcomeUnknown
from tuplegate.engine.port.failures import ParameterMismatch as ParameterMismatch
from tuplegate.engine.port.failures import ParseFailed as ParseFailed
from tuplegate.engine.port.failures import StatementFailed as StatementFailed
from tuplegate.engine.port.failures import Stopped as Stopped
from tuplegate.engine.port.failures import Superseded as Superseded
from tuplegate.engine.port.failures import TimedOut as TimedOut
from tuplegate.engine.port.failures import TransactionOver as TransactionOver
from tuplegate.engine.port.installing import EngineOwner as EngineOwner
from tuplegate.engine.port.installing import Examined as Examined
from tuplegate.engine.port.installing import Metadata as Metadata
from tuplegate.engine.port.installing import MetadataSession as MetadataSession
from tuplegate.engine.port.installing import Preparation as Preparation
from tuplegate.engine.port.installing import ReachedEngine as ReachedEngine
from tuplegate.engine.port.installing import ReadyEngine as ReadyEngine
from tuplegate.engine.port.installing import ServiceLogin as ServiceLogin
from tuplegate.engine.port.open_transactions import EndReason as EndReason
from tuplegate.engine.port.open_transactions import OpenTransaction as OpenTransaction
from tuplegate.engine.port.reports import Durability as Durability
from tuplegate.engine.port.reports import EngineHealth as EngineHealth
from tuplegate.engine.port.reports import Headroom as Headroom
from tuplegate.engine.port.reports import Load as Load
from tuplegate.engine.port.reports import Measured as Measured
from tuplegate.engine.port.reports import Weakness as Weakness
from tuplegate.engine.port.results import RowStream as RowStream
from tuplegate.engine.port.results import SessionResult as SessionResult
from tuplegate.engine.port.results import Tables as Tables
from tuplegate.engine.port.shapes import Shape as Shape
from tuplegate.engine.port.shapes import ValueStyle as ValueStyle
from tuplegate.engine.port.transactions import Commit as Commit
from tuplegate.engine.port.transactions import Keep as Keep
from tuplegate.engine.port.transactions import KeptAnswer as KeptAnswer
from tuplegate.engine.port.transactions import KeptAnswers as KeptAnswers
from tuplegate.engine.port.transactions import Outcome as Outcome
from tuplegate.engine.port.transactions import Promise as Promise
from tuplegate.engine.port.transactions import Ticket as Ticket
from tuplegate.engine.port.transactions import TransactionResult as TransactionResult
from tuplegate.engine.port.wire import WireSession as WireSession
from tuplegate.engine.port.wire import WireState as WireState
from tuplegate.engine.port.work import Access as Access
from tuplegate.engine.port.work import Bounds as Bounds
from tuplegate.engine.port.work import Result as Result
from tuplegate.engine.port.work import Statement as Statement
from tuplegate.engine.port.work import Target as Target
from tuplegate.protocol.answers import Notice as Notice
