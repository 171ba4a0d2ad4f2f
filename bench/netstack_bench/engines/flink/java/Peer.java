package netstack.peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.Partitioner;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.typeutils.ValueTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.checkpoint.CheckpointStatsSnapshot;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Takes a cell or a word count a line of standard input and prints a line of JSON for each: what a real Flink did. */
public final class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long SAMPLE_MS = 50;
    private static final long DEPLOY_LIMIT_S = 120;

    private static MiniCluster cluster;
    private static String clusterKey = "";

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever a library prints
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            Map<String, Object> answer;
            try {
                JsonNode asked = JSON.readTree(line);
                answer = asked.has("count_words") ? Words.count(asked) : run(new Cell(asked));
            } catch (Exception failure) {
                failure.printStackTrace();
                answer = Map.of("error", rootOf(failure));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        if (cluster != null) {
            cluster.close();
        }
        System.exit(0);
    }

    private static String rootOf(Throwable failure) {
        Throwable root = failure;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        return root.toString();
    }

    private static JobGraph jobOf(Cell cell, Configuration settings) {
        settings.setString("execution.buffer-timeout.enabled", String.valueOf(cell.timeoutMs >= 0));
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        job.getConfig().enableObjectReuse();
        if (cell.timeoutMs >= 0) {
            job.setBufferTimeout(cell.timeoutMs);
        }
        Checkpoints.enable(cell, job);
        DataStream<Record> source = job.fromSource(new CellSource(), WatermarkStrategy.noWatermarks(), Reporter.SOURCE, new ValueTypeInfo<>(Record.class))
                .setParallelism(1)
                .slotSharingGroup(Cluster.sourceSlots());
        boolean hasSinks = cell.rows != null && cell.rows.hasSinks();
        (hasSinks ? source.partitionCustom(new ToItsSink(), new ItsSink()) : source.rebalance())
                .sinkTo(new CellSink())
                .name(Reporter.SINK)
                .setParallelism(cell.channels)
                .slotSharingGroup(Cluster.sinkSlots());
        return job.getStreamGraph().getJobGraph();
    }

    private static final class ToItsSink implements Partitioner<Integer> {
        @Override
        public int partition(Integer sink, int sinks) {
            return sink;
        }
    }

    private static final class ItsSink implements KeySelector<Record, Integer> {
        @Override
        public Integer getKey(Record record) {
            return Board.current.cell.rows.sinkOf(record.index);
        }
    }

    private static Map<String, Object> run(Cell cell) throws Exception {
        if (!clusterKey.equals(cell.clusterKey())) {
            if (cluster != null) {
                cluster.close();
            }
            clusterKey = "";
            cluster = Cluster.start(cell);
            clusterKey = cell.clusterKey();
        }
        System.gc(); // what earlier cells left is not this one's
        Reporter.clear();
        Board board = Board.current = new Board(cell);
        Configuration settings = new Configuration();
        Path checkpoints = Checkpoints.folderOf(cell, settings);
        try {
            return run(board, jobOf(cell, settings));
        } finally {
            Checkpoints.remove(checkpoints);
        }
    }

    private static Map<String, Object> run(Board board, JobGraph graph) throws Exception {
        JobID job = graph.getJobID();
        cluster.submitJob(graph).get();
        long limit = System.nanoTime() + DEPLOY_LIMIT_S * 1_000_000_000L;
        while (!board.running.await(20, TimeUnit.MILLISECONDS)) {
            if (System.nanoTime() > limit) {
                cluster.cancelJob(job).get();
                throw new IllegalStateException("the job does not run after " + DEPLOY_LIMIT_S + " s");
            }
            failIfOver(job);
        }
        Thread.sleep(100);
        return measure(board, job);
    }

    private static Map<String, Object> measure(Board board, JobID job) throws Exception {
        long cpuBefore = processCpuNs();
        Samples samples = new Samples();
        board.startNs = System.nanoTime() + 20_000_000;
        Thread.sleep(20);
        long beganMs = System.currentTimeMillis();
        samples.begin();
        while (board.stoppedNs == 0) {
            samples.take(board);
            failIfOver(job);
            Thread.sleep(SAMPLE_MS);
        }
        long stoppedMs = System.currentTimeMillis() - (System.nanoTime() - board.stoppedNs) / 1_000_000;
        JobResult result = cluster.requestJobResult(job).get();
        if (!result.isSuccess()) {
            throw new IllegalStateException("the job ended: " + result.getSerializedThrowable().map(Throwable::toString).orElse("?"));
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("cpu_s", (processCpuNs() - cpuBefore) / 1e9);
        answer.put("start_ns", board.startNs);
        answer.put("stopped_ns", board.stoppedNs);
        answer.put("sent", board.sent);
        answer.put("received", board.received());
        TreeMap<Integer, Long> counts = new TreeMap<>();
        List<String> problems = new ArrayList<>();
        long last = board.stoppedNs, least = Long.MAX_VALUE, greatest = 0;
        for (CellSink.Writer sink : board.sinks()) {
            sink.latencies.addTo(counts);
            least = Math.min(least, sink.latencies.least);
            greatest = Math.max(greatest, sink.latencies.greatest);
            last = Math.max(last, sink.lastNs);
            if (sink.problem != null) {
                problems.add(sink.problem);
            }
        }
        answer.put("last_ns", last);
        answer.put("problems", problems.subList(0, Math.min(5, problems.size())));
        answer.put("latency", Map.of("buckets", counts.keySet(), "counts", counts.values(), "min_ns", counts.isEmpty() ? 0 : least, "max_ns", greatest));
        answer.put("arrivals", samples.arrivals);
        answer.put("sides", samples.sides());
        CheckpointStatsSnapshot statistics = cluster.getExecutionGraph(job).get().getCheckpointStatsSnapshot();
        answer.put("checkpoints", Checkpoints.of(statistics, beganMs + (long) (board.cell.warmupSeconds * 1e3), stoppedMs));
        return answer;
    }

    private static void failIfOver(JobID job) throws Exception {
        JobStatus status = cluster.getJobStatus(job).get();
        if (status.isGloballyTerminalState() && status != JobStatus.FINISHED) {
            throw new IllegalStateException("the job ended: " + cluster.requestJobResult(job).get().getSerializedThrowable().map(Throwable::toString).orElse("?"));
        }
    }

    private static long processCpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
