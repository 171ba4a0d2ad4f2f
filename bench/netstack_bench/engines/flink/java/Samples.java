package netstack.peer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Flink's metrics of both sides while the source emits: at first, on average, at last; and when it is over. */
final class Samples {
    private static final List<String> SIDES = List.of(Reporter.SOURCE, Reporter.SINK);

    /** How many records had arrived when: pairs of nanoseconds and counts. */
    final List<long[]> arrivals = new ArrayList<>();

    private final Map<String, Map<String, Double>> before = new LinkedHashMap<>();
    private final Map<String, Map<String, Double>> sums = new LinkedHashMap<>();
    private Map<String, Map<String, Double>> after = new LinkedHashMap<>();
    private long beganNs;
    private long endedNs;
    private int taken;

    void begin() {
        beganNs = System.nanoTime();
        SIDES.forEach(side -> before.put(side, Reporter.read(side)));
    }

    /** Takes a sample; it does not count if the source stopped meanwhile, because its end is sent differently. */
    void take(Board board) {
        long now = System.nanoTime();
        long received = board.received();
        Map<String, Map<String, Double>> found = new LinkedHashMap<>();
        SIDES.forEach(side -> found.put(side, Reporter.read(side)));
        if (board.stoppedNs != 0) {
            return;
        }
        arrivals.add(new long[] {now, received});
        taken++;
        endedNs = now;
        after = found;
        found.forEach((side, values) -> {
            Map<String, Double> sum = sums.computeIfAbsent(side, ignored -> new TreeMap<>());
            values.forEach((name, value) -> sum.merge(name, value, Double::sum));
        });
    }

    /** By side: `before`, `mean`, `after` and `final`, each a number by Flink's name; `seconds` between the first two. */
    Map<String, Object> sides() {
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("seconds", (endedNs - beganNs) / 1e9);
        for (String side : SIDES) {
            Map<String, Double> mean = new TreeMap<>(sums.get(side));
            mean.replaceAll((name, sum) -> sum / taken);
            made.put(side, Map.of("before", before.get(side), "mean", mean, "after", after.get(side), "final", Reporter.read(side)));
        }
        return made;
    }
}
