"""The port: what the planes need of an engine, in words that any SQL engine can fill.

A plane gives a `Target` (which database, with which rights) and a `Statement`, and gets rows that are JSON already:
encoding a value needs the engine's knowledge of its types, so the engine's side does it. Every failure is an exception
of `engine_failures`; none of them names a driver.

One module for each subject: `shapes` (how rows are asked for), `work` (the records of every request), `results`,
`queries`, `transactions` (their records), `running_transactions`, `open_transactions`, `records` (ids, keys, locks),
`sessions`, `wire`, `reports` (what an engine says of itself), `databases`, `engine_failures`, and `installing`
(what the service's processes do with an engine before they use it). A handler takes the subjects that it uses, none of
which has more than 8 members; `engine` joins them. Records are msgspec structs, at a tenth of the cost of dataclasses.
"""

from tuplegate.engine.port.databases import FIRST_ENGINE as FIRST_ENGINE
from tuplegate.engine.port.databases import AllDatabases as AllDatabases
from tuplegate.engine.port.databases import Databases as Databases
from tuplegate.engine.port.databases import DatabaseSizes as DatabaseSizes
from tuplegate.engine.port.databases import Dumps as Dumps
from tuplegate.engine.port.databases import EngineDatabases as EngineDatabases
from tuplegate.engine.port.databases import Following as Following
from tuplegate.engine.port.databases import OneEngine as OneEngine
from tuplegate.engine.port.databases import ServerDatabases as ServerDatabases
from tuplegate.engine.port.engine import Engine as Engine
from tuplegate.engine.port.engine import EngineSnapshots as EngineSnapshots
from tuplegate.engine.port.engine import OneOfSeveral as OneOfSeveral
from tuplegate.engine.port.engine import OpenEngine as OpenEngine
from tuplegate.engine.port.engine import Orders as Orders
from tuplegate.engine.port.engine_failures import AlreadyRunning as AlreadyRunning
from tuplegate.engine.port.engine_failures import BadPosition as BadPosition
from tuplegate.engine.port.engine_failures import BadUrl as BadUrl
from tuplegate.engine.port.engine_failures import CommitsRefused as CommitsRefused
from tuplegate.engine.port.engine_failures import Conflict as Conflict
from tuplegate.engine.port.engine_failures import CopyRefused as CopyRefused
from tuplegate.engine.port.engine_failures import DumpFailed as DumpFailed
from tuplegate.engine.port.engine_failures import DumpStopped as DumpStopped
from tuplegate.engine.port.engine_failures import EmptyStatement as EmptyStatement
from tuplegate.engine.port.engine_failures import EngineBusy as EngineBusy
from tuplegate.engine.port.engine_failures import EngineFailure as EngineFailure
from tuplegate.engine.port.engine_failures import EngineLost as EngineLost
from tuplegate.engine.port.engine_failures import EngineRefused as EngineRefused
from tuplegate.engine.port.engine_failures import EngineUnavailable as EngineUnavailable
from tuplegate.engine.port.engine_failures import MoveFailed as MoveFailed
from tuplegate.engine.port.engine_failures import MultipleStatements as MultipleStatements
from tuplegate.engine.port.engine_failures import NoProgress as NoProgress
from tuplegate.engine.port.engine_failures import NotInTime as NotInTime
from tuplegate.engine.port.engine_failures import NotSupported as NotSupported
from tuplegate.engine.port.engine_failures import OutcomeUnknown as OutcomeUnknown
from tuplegate.engine.port.engine_failures import ParameterMismatch as ParameterMismatch
from tuplegate.engine.port.engine_failures import ParseFailed as ParseFailed
from tuplegate.engine.port.engine_failures import StatementFailed as StatementFailed
from tuplegate.engine.port.engine_failures import Stopped as Stopped
from tuplegate.engine.port.engine_failures import Superseded as Superseded
from tuplegate.engine.port.engine_failures import TimedOut as TimedOut
from tuplegate.engine.port.engine_failures import TransactionOver as TransactionOver
from tuplegate.engine.port.installing import EngineOwner as EngineOwner
from tuplegate.engine.port.installing import Examined as Examined
from tuplegate.engine.port.installing import Metadata as Metadata
from tuplegate.engine.port.installing import MetadataSession as MetadataSession
from tuplegate.engine.port.installing import Preparation as Preparation
from tuplegate.engine.port.installing import ReachedEngine as ReachedEngine
from tuplegate.engine.port.installing import ReadyEngine as ReadyEngine
from tuplegate.engine.port.installing import ServiceLogin as ServiceLogin
from tuplegate.engine.port.open_transactions import EndReason as EndReason
from tuplegate.engine.port.open_transactions import OpenState as OpenState
from tuplegate.engine.port.open_transactions import OpenTransaction as OpenTransaction
from tuplegate.engine.port.queries import Answers as Answers
from tuplegate.engine.port.queries import Queries as Queries
from tuplegate.engine.port.queries import Snapshots as Snapshots
from tuplegate.engine.port.records import Lock as Lock
from tuplegate.engine.port.records import Locks as Locks
from tuplegate.engine.port.records import Records as Records
from tuplegate.engine.port.reports import Durability as Durability
from tuplegate.engine.port.reports import EngineHealth as EngineHealth
from tuplegate.engine.port.reports import Headroom as Headroom
from tuplegate.engine.port.reports import Load as Load
from tuplegate.engine.port.reports import Measured as Measured
from tuplegate.engine.port.reports import Reports as Reports
from tuplegate.engine.port.reports import Weakness as Weakness
from tuplegate.engine.port.results import RowStream as RowStream
from tuplegate.engine.port.results import SessionResult as SessionResult
from tuplegate.engine.port.results import StreamSums as StreamSums
from tuplegate.engine.port.results import Tables as Tables
from tuplegate.engine.port.running_transactions import TransactionOpener as TransactionOpener
from tuplegate.engine.port.running_transactions import Transactions as Transactions
from tuplegate.engine.port.sessions import EngineSession as EngineSession
from tuplegate.engine.port.sessions import Sessions as Sessions
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
from tuplegate.engine.port.wire import OpenedWire as OpenedWire
from tuplegate.engine.port.wire import Wires as Wires
from tuplegate.engine.port.wire import WireSession as WireSession
from tuplegate.engine.port.wire import WireState as WireState
from tuplegate.engine.port.work import Access as Access
from tuplegate.engine.port.work import Bounds as Bounds
from tuplegate.engine.port.work import Result as Result
from tuplegate.engine.port.work import Statement as Statement
from tuplegate.engine.port.work import Target as Target
from tuplegate.protocol.answers import Notice as Notice
