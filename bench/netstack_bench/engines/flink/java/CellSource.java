package netstack.peer;

import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Emits numbered records from the cell's start on: each when it is due, or as fast as the network takes them. */
final class CellSource implements Source<Record, CellSource.NoSplit, Integer> {
    private static final long LONGEST_PARK_NS = 10_000_000;

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<Record, NoSplit> createReader(SourceReaderContext context) {
        return new Reader(Board.current);
    }

    @Override
    public SplitEnumerator<NoSplit, Integer> createEnumerator(SplitEnumeratorContext<NoSplit> context) {
        return new NoEnumerator();
    }

    @Override
    public SplitEnumerator<NoSplit, Integer> restoreEnumerator(SplitEnumeratorContext<NoSplit> context, Integer state) {
        return new NoEnumerator();
    }

    @Override
    public SimpleVersionedSerializer<NoSplit> getSplitSerializer() {
        return new Nothing<>(new NoSplit());
    }

    @Override
    public SimpleVersionedSerializer<Integer> getEnumeratorCheckpointSerializer() {
        return new Nothing<>(0);
    }

    private static final class Reader implements SourceReader<Record, NoSplit> {
        private static final CompletableFuture<Void> NOW = CompletableFuture.completedFuture(null);

        private final Board board;
        private final Cell cell;
        private final Record record = new Record();
        private final long runNs;
        private long next;
        private boolean isStarted;

        Reader(Board board) {
            this.board = board;
            cell = board.cell;
            runNs = cell.seconds > 0 ? (long) (cell.seconds * 1e9) : Long.MAX_VALUE;
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Record> out) {
            if (!isStarted) {
                return waitForStart();
            }
            if (cell.records > 0 && next >= cell.records) {
                return stop();
            }
            if (cell.rate > 0) {
                long due = cell.dueNs(next);
                if (due >= runNs) {
                    return stop();
                }
                long ahead = board.startNs + due - System.nanoTime();
                while (ahead > 0) {
                    if (ahead > LONGEST_PARK_NS) { // the task's mailbox has its turn
                        LockSupport.parkNanos(LONGEST_PARK_NS);
                        return InputStatus.MORE_AVAILABLE;
                    }
                    LockSupport.parkNanos(ahead);
                    ahead = board.startNs + due - System.nanoTime();
                }
            } else {
                boolean isSample = next % board.stride == 0;
                if (isSample || (next & 15) == 0) {
                    long now = System.nanoTime();
                    if (now - board.startNs >= runNs) {
                        return stop();
                    }
                    if (isSample) {
                        board.emitted(next, now);
                    }
                }
            }
            record.set(next++);
            out.collect(record);
            return InputStatus.MORE_AVAILABLE;
        }

        private InputStatus waitForStart() {
            long start = board.startNs;
            long ahead = start == 0 ? LONGEST_PARK_NS / 10 : start - System.nanoTime();
            if (start != 0 && ahead <= 0) {
                isStarted = true;
            } else {
                LockSupport.parkNanos(Math.min(ahead, LONGEST_PARK_NS));
            }
            return InputStatus.MORE_AVAILABLE;
        }

        private InputStatus stop() {
            board.sent = next;
            board.stoppedNs = System.nanoTime();
            return InputStatus.END_OF_INPUT;
        }

        @Override
        public void start() {
            board.running.countDown();
        }

        @Override
        public List<NoSplit> snapshotState(long checkpoint) {
            return Collections.emptyList();
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return NOW;
        }

        @Override
        public void addSplits(List<NoSplit> splits) {}

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }

    static final class NoSplit implements SourceSplit {
        @Override
        public String splitId() {
            return "none";
        }
    }

    private static final class NoEnumerator implements SplitEnumerator<NoSplit, Integer> {
        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<NoSplit> splits, int subtask) {}

        @Override
        public void addReader(int subtask) {}

        @Override
        public Integer snapshotState(long checkpoint) {
            return 0;
        }

        @Override
        public void close() {}
    }

    private static final class Nothing<E> implements SimpleVersionedSerializer<E> {
        private final E value;

        Nothing(E value) {
            this.value = value;
        }

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(E ignored) {
            return new byte[0];
        }

        @Override
        public E deserialize(int version, byte[] bytes) {
            return value;
        }
    }
}
