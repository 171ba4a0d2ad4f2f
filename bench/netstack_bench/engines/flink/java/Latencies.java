package netstack.peer;

import java.util.TreeMap;

/** Counts of durations in the log-linear buckets of bench/netstack_bench/histogram.py; memory only for the powers of two in use. */
final class Latencies {
    private static final int HALF = 1024;
    private static final long MOST_NS = (1L << 46) - 1;

    private final long[][] counts = new long[64][];
    long least = Long.MAX_VALUE;
    long greatest;

    void record(long ns) {
        long value = Math.min(Math.max(ns, 0), MOST_NS);
        int shift = Math.max(53 - Long.numberOfLeadingZeros(value), 0);
        int bucket = shift * HALF + (int) (value >>> shift);
        long[] part = counts[bucket / HALF];
        if (part == null) {
            part = counts[bucket / HALF] = new long[HALF];
        }
        part[bucket % HALF]++;
        least = Math.min(least, value);
        greatest = Math.max(greatest, value);
    }

    /** Adds these counts to {@code all}, by bucket. */
    void addTo(TreeMap<Integer, Long> all) {
        for (int number = 0; number < counts.length; number++) {
            for (int at = 0; counts[number] != null && at < HALF; at++) {
                if (counts[number][at] > 0) {
                    all.merge(number * HALF + at, counts[number][at], Long::sum);
                }
            }
        }
    }
}
