// PostgreSQL's driver for Java through the tunnel: types both ways, errors, transactions, many rows, a cancel.
// java -cp postgresql.jar Scenario.java 127.0.0.1:5432/main

import java.math.BigDecimal;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PSQLException;

public class Scenario {
    static final OffsetDateTime MOMENT = OffsetDateTime.of(2026, 11, 14, 23, 57, 8, 500_000_000, ZoneOffset.UTC);

    public static void main(String[] arguments) throws Exception {
        String url = "jdbc:postgresql://" + arguments[0];
        try (Connection connection = DriverManager.getConnection(url, "any", "")) {
            try (Statement statement = connection.createStatement()) {
                statement.execute(
                    "create temp table items (id int primary key, big int8, price numeric, half float8, yes boolean,"
                    + " name text, raw bytea, day date, at timestamptz, tag uuid, list int[])");
            }
            writeAndRead(connection);
            fail(connection);
            transact(connection);
            readMany(connection);
            copy(connection);
            cancel(connection);
            serveSimply(url);
        }
        System.out.println("done");
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** Runs the same statement often, so that the driver prepares it and turns to the binary form. */
    static void writeAndRead(Connection connection) throws SQLException {
        UUID tag = new UUID(0, 7);
        try (PreparedStatement insert =
            connection.prepareStatement("insert into items values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")) {
            Object[] values = {
                1, 9007199254740993L, new BigDecimal("1.50"), 0.5, true, "it's \\ é😀", new byte[] {0, -1},
                LocalDate.of(2026, 2, 28), MOMENT, tag, connection.createArrayOf("int4", new Integer[] {1, null, 3})
            };
            for (int place = 0; place < values.length; place++) {
                insert.setObject(place + 1, values[place]);
            }
            check(insert.executeUpdate() == 1, "a row is inserted");
        }
        for (int round = 0; round < 8; round++) {
            try (PreparedStatement select = connection.prepareStatement("select * from items where id = ?")) {
                select.setInt(1, 1);
                ResultSet row = select.executeQuery();
                check(row.next(), "the row is there");
                check(row.getLong("big") == 9007199254740993L, "int8");
                check(row.getBigDecimal("price").equals(new BigDecimal("1.50")), "numeric");
                check(row.getDouble("half") == 0.5 && row.getBoolean("yes"), "float8 and boolean");
                check(row.getString("name").equals("it's \\ é😀"), "text");
                check(Arrays.equals(row.getBytes("raw"), new byte[] {0, -1}), "bytea");
                check(row.getObject("day", LocalDate.class).equals(LocalDate.of(2026, 2, 28)), "date");
                check(row.getObject("at", OffsetDateTime.class).isEqual(MOMENT), "timestamptz");
                check(row.getObject("tag").equals(tag), "uuid");
                Array list = row.getArray("list");
                check(Arrays.equals((Integer[]) list.getArray(), new Integer[] {1, null, 3}), "int[]");
            }
        }
    }

    static void fail(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeQuery("select nothing");
            throw new AssertionError("it did not fail");
        } catch (PSQLException error) {
            check(error.getSQLState().equals("42703"), "the code of an error");
            check(error.getServerErrorMessage().getPosition() == 8, "its position");
        }
        try (PreparedStatement insert = connection.prepareStatement("insert into items (id) values (?)")) {
            for (int id : new int[] {5, 1}) {
                insert.setInt(1, id);
                insert.addBatch();
            }
            insert.executeBatch();
            throw new AssertionError("it did not fail");
        } catch (BatchUpdateException error) {
            check(error.getSQLState().equals("23505"), "the code of a batch's error");
        }
    }

    static void transact(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            check(connection.getTransactionIsolation() == Connection.TRANSACTION_SERIALIZABLE, "the level");
            statement.executeUpdate("insert into items (id) values (2)");
            connection.commit();
            statement.executeUpdate("delete from items");
            connection.rollback();
            ResultSet row = statement.executeQuery("select count(*) from items");
            row.next();
            check(row.getInt(1) == 2, "one transaction committed and one rolled back");
            connection.commit();
        }
    }

    /** With a cursor, which needs a transaction. */
    static void readMany(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(500);
            ResultSet rows = statement.executeQuery("select g from generate_series(1, 10000) g");
            long sum = 0;
            while (rows.next()) {
                sum += rows.getInt(1);
            }
            check(sum == 50_005_000, "ten thousand rows");
        }
        connection.commit();
        connection.setAutoCommit(true);
    }

    static void copy(Connection connection) throws Exception {
        CopyManager copies = connection.unwrap(PGConnection.class).getCopyAPI();
        long copied = copies.copyIn("copy items (id) from stdin", new java.io.StringReader("7\n8\n"));
        java.io.StringWriter out = new java.io.StringWriter();
        copies.copyOut("copy (select id from items where id > 6 order by id) to stdout", out);
        check(copied == 2 && out.toString().equals("7\n8\n"), "rows are copied both ways");
    }

    static void cancel(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    while (true) {
                        Thread.sleep(50);
                        statement.cancel();
                    }
                } catch (InterruptedException | SQLException done) {
                    Thread.currentThread().interrupt();
                }
            });
            canceller.start();
            try {
                statement.execute("select pg_sleep(60)");
                throw new AssertionError("it was not cancelled");
            } catch (PSQLException error) {
                check(error.getSQLState().equals("57014"), "the code of a cancel");
            } finally {
                canceller.interrupt();
                canceller.join();
            }
            check(statement.execute("select 1"), "the connection goes on");
        }
    }

    /** VACUUM needs the simple protocol. */
    static void serveSimply(String url) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url + "?preferQueryMode=simple", "any", "");
            Statement statement = connection.createStatement()) {
            statement.execute("create temp table more (n int)");
            statement.execute("vacuum analyze more");
        }
    }
}
