package netstack.peer;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** What the source, the sinks and the main thread of one cell share: all of them live in this JVM. */
final class Board {
    static volatile Board current;

    private static final int RING = 1 << 18;

    final Cell cell;
    /** Counted down by the source and by every sink, once it runs. */
    final CountDownLatch running;
    /** Set by the main thread when everything runs; 0 before. */
    volatile long startNs;
    /** Set by the source after its last record; 0 before. */
    volatile long stoppedNs;
    volatile long sent;
    /** Without a rate one record in this many is a latency sample. */
    final int stride;
    private final long[] emittedNs;
    private final List<CellSink.Writer> sinks = new ArrayList<>();

    Board(Cell cell) {
        this.cell = cell;
        running = new CountDownLatch(1 + cell.channels);
        stride = cell.consumeRate > 0 ? 1 : 64;
        emittedNs = cell.rate > 0 ? null : new long[RING];
    }

    synchronized void add(CellSink.Writer sink) {
        sinks.add(sink);
        running.countDown();
    }

    synchronized List<CellSink.Writer> sinks() {
        return new ArrayList<>(sinks);
    }

    long received() {
        long total = 0;
        for (CellSink.Writer sink : sinks()) {
            total += sink.count.get();
        }
        return total;
    }

    /** The record travels after this store through queues that order memory, so the sink sees it. */
    void emitted(long index, long now) {
        emittedNs[(int) (index / stride) & (RING - 1)] = now;
    }

    long emittedNs(long index) {
        return emittedNs[(int) (index / stride) & (RING - 1)];
    }
}
