package netstack.peer;

import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.Metric;
import org.apache.flink.metrics.MetricConfig;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.reporter.MetricReporter;
import org.apache.flink.metrics.reporter.MetricReporterFactory;
import org.apache.flink.runtime.metrics.TimerGauge;

/** Keeps the metrics of the running cell's tasks, those of tasks that ended too. */
public final class Reporter implements MetricReporter {
    static final String SOURCE = "cell-source";
    static final String SINK = "cell-sink";

    private static final Map<String, Metric> METRICS = new ConcurrentHashMap<>();

    public static final class Factory implements MetricReporterFactory {
        @Override
        public MetricReporter createMetricReporter(Properties properties) {
            return new Reporter();
        }
    }

    /** Before a cell: what is reported from here on is its own. */
    static void clear() {
        METRICS.clear();
    }

    /** Sums over the subtasks of one side, by Flink's names; times in milliseconds; what is no number is left out. */
    static Map<String, Double> read(String task) {
        Map<String, Double> sums = new TreeMap<>();
        METRICS.forEach((key, metric) -> {
            if (!key.startsWith(task)) {
                return;
            }
            Object value = null;
            try {
                if (metric instanceof TimerGauge) {
                    value = ((TimerGauge) metric).getAccumulatedCount();
                } else if (metric instanceof Counter) {
                    value = ((Counter) metric).getCount();
                } else if (metric instanceof Gauge) {
                    value = ((Gauge<?>) metric).getValue();
                }
            } catch (RuntimeException gone) {
                return; // a gauge of a task that has ended
            }
            if (value instanceof Number && !Double.isNaN(((Number) value).doubleValue())) {
                sums.merge(key.substring(key.lastIndexOf('/') + 1), ((Number) value).doubleValue(), Double::sum);
            }
        });
        return sums;
    }

    @Override
    public void open(MetricConfig config) {}

    @Override
    public void close() {}

    @Override
    public void notifyOfAddedMetric(Metric metric, String name, MetricGroup group) {
        String scope = group.getMetricIdentifier("");
        String task = scope.contains(SOURCE) ? SOURCE : scope.contains(SINK) ? SINK : null;
        boolean isTwice = scope.contains(".buffers."); // Flink 1.x has these metrics under "Shuffle.Netty" too
        if (task != null && !isTwice && !scope.contains(".operator.") && (!name.startsWith("num") || !scope.contains("Netty"))) {
            METRICS.put(task + scope + "/" + name, metric);
        }
    }

    @Override
    public void notifyOfRemovedMetric(Metric metric, String name, MetricGroup group) {}
}
