package netstack.peer;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;

/** Counts records, checks their order, takes their latency, and takes no more than its share of the rate. */
final class CellSink implements Sink<Record> {
    @Override
    public SinkWriter<Record> createWriter(WriterInitContext context) {
        return new Writer(Board.current);
    }

    static final class Writer implements SinkWriter<Record> {
        /** How far ahead of its turn a sink may be before it sleeps: bench/netstack_bench/pacing.py does the same. */
        private static final long GRAIN_NS = 10_000_000;

        final AtomicLong count = new AtomicLong();
        final Latencies latencies = new Latencies();
        volatile String problem;
        volatile long lastNs;

        private final Board board;
        private final Cell cell;
        private final boolean isPaced;
        private final double turnNs;
        private double freeNs;
        private long seen;
        private long last = -1;

        Writer(Board board) {
            this.board = board;
            cell = board.cell;
            isPaced = cell.rate > 0;
            turnNs = cell.consumeRate > 0 ? 1e9 * cell.channels / cell.consumeRate : 0;
            board.add(this);
        }

        @Override
        public void write(Record record, Context context) {
            long index = record.index;
            if (isPaced) {
                long now = System.nanoTime();
                long due = cell.dueNs(index);
                if (due >= cell.warmupSeconds * 1e9) {
                    latencies.record(now - board.startNs - due);
                }
            } else if (index % board.stride == 0) {
                long emitted = board.emittedNs(index);
                if (emitted - board.startNs >= cell.warmupSeconds * 1e9) {
                    latencies.record(System.nanoTime() - emitted);
                }
            }
            if (!cell.follows(last, index) || !record.isIntact()) {
                problem = "record " + index + " came after record " + last;
            }
            last = index;
            count.lazySet(++seen);
            if (turnNs > 0) {
                takeTurn();
            }
        }

        private void takeTurn() {
            long now = System.nanoTime();
            freeNs = Math.max(freeNs, now - GRAIN_NS) + turnNs;
            double ahead = freeNs - now;
            if (ahead > GRAIN_NS) {
                LockSupport.parkNanos((long) (ahead - GRAIN_NS));
            }
        }

        @Override
        public void flush(boolean isEndOfInput) {
            if (isEndOfInput) {
                lastNs = System.nanoTime();
            }
        }

        @Override
        public void close() {}
    }
}
