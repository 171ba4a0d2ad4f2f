import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.configuration.NettyShuffleEnvironmentOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.Metric;
import org.apache.flink.metrics.MetricConfig;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.reporter.MetricReporter;
import org.apache.flink.metrics.reporter.MetricReporterFactory;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** Runs a job on a cluster with the config.yaml of each folder; prints which keys nobody knows, and what came of the others. */
public final class ConfigCheck implements MetricReporter {
    private static final Map<String, Object> FOUND = new TreeMap<>();

    public static final class Factory implements MetricReporterFactory {
        @Override
        public MetricReporter createMetricReporter(Properties properties) {
            return new ConfigCheck();
        }
    }

    public static void main(String[] folders) throws Exception {
        for (String folder : folders) {
            FOUND.clear();
            check(GlobalConfiguration.loadConfiguration(folder));
            System.out.println(new ObjectMapper().writeValueAsString(FOUND));
        }
        System.exit(0);
    }

    private static void check(Configuration config) throws Exception {
        TreeSet<String> unknown = new TreeSet<>(config.keySet());
        for (Class<?> options : new Class<?>[] {ExecutionOptions.class, TaskManagerOptions.class, NettyShuffleEnvironmentOptions.class}) {
            for (Field field : options.getFields()) {
                if (Modifier.isStatic(field.getModifiers()) && ConfigOption.class.isAssignableFrom(field.getType())) {
                    unknown.remove(((ConfigOption<?>) field.get(null)).key());
                }
            }
        }
        FOUND.put("unknown", unknown);
        config.setString("metrics.reporters", "check");
        config.setString("metrics.reporter.check.factory.class", Factory.class.getName());
        config.setString("rest.bind-port", "0");
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment(config);
        FOUND.put("buffer_timeout_ms", job.getBufferTimeout());
        job.setParallelism(1);
        job.fromSequence(1, 1000).rebalance().sinkTo(new DiscardingSink<>());
        try (MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder().setConfiguration(config).setNumSlotsPerTaskManager(1).build())) {
            cluster.start();
            cluster.executeJobBlocking(job.getStreamGraph().getJobGraph());
        }
    }

    @Override
    public void open(MetricConfig config) {}

    @Override
    public void close() {}

    @Override
    public void notifyOfAddedMetric(Metric metric, String name, MetricGroup group) {
        if (name.equals("TotalMemory") || name.equals("TotalMemorySegments")) {
            if (group.getMetricIdentifier("").contains("Shuffle.Netty")) {
                FOUND.put(name, ((Gauge<?>) metric).getValue());
            }
        }
    }

    @Override
    public void notifyOfRemovedMetric(Metric metric, String name, MetricGroup group) {}
}
