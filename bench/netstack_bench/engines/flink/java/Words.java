package netstack.peer;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The word count of {@code netstack.examples.word_count}: files, lines, words, a count for each key on the heap, and the
 * counts once at the end. One slot on each of {@code parallelism} task managers, and a checkpoint every second.
 */
final class Words {
    private static final Map<String, Long> COUNTS = new ConcurrentHashMap<>();

    private static MiniCluster cluster;

    private Words() {}

    /** Counts the words of the files in a folder; the seconds are those from the job's submission to its end. */
    static Map<String, Object> count(JsonNode line) throws Exception {
        int parallelism = line.path("parallelism").asInt();
        if (cluster == null) {
            Configuration common = new Configuration();
            common.setString("taskmanager.memory.network.min", "64m");
            common.setString("taskmanager.memory.network.max", "64m");
            common.setString("rest.address", "127.0.0.1");
            common.setString("rest.bind-port", "0");
            common.setString("restart-strategy.type", "none");
            cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                    .setConfiguration(common)
                    .setNumTaskManagers(parallelism)
                    .setNumSlotsPerTaskManager(1)
                    .build());
            cluster.start();
        }
        COUNTS.clear();
        System.gc();
        JobGraph graph = jobOf(line.path("count_words").asText(), parallelism);
        JobID job = graph.getJobID();
        long began = System.nanoTime();
        cluster.submitJob(graph).get();
        JobResult result = cluster.requestJobResult(job).get();
        double seconds = (System.nanoTime() - began) / 1e9;
        if (!result.isSuccess()) {
            throw new IllegalStateException("the word count failed: " + result.getSerializedThrowable().map(Throwable::toString).orElse("?"));
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("seconds", seconds);
        answer.put("counts", new HashMap<>(COUNTS));
        return answer;
    }

    private static JobGraph jobOf(String folder, int parallelism) {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment(new Configuration());
        job.setParallelism(parallelism);
        job.getConfig().enableObjectReuse();
        job.enableCheckpointing(1000);
        job.getCheckpointConfig().enableUnalignedCheckpoints();
        FileSource<String> files = FileSource.forRecordStreamFormat(new TextLineInputFormat(), new Path(folder)).build();
        job.fromSource(files, WatermarkStrategy.noWatermarks(), "lines")
                .flatMap(new Split())
                .returns(Types.STRING)
                .keyBy(word -> word, Types.STRING)
                .process(new Count())
                .sinkTo(new Collect());
        return job.getStreamGraph().getJobGraph();
    }

    /** The words of a line in lower case; a word is letters, digits and underscores. */
    private static final class Split implements FlatMapFunction<String, String> {
        @Override
        public void flatMap(String line, Collector<String> words) {
            String lower = line.toLowerCase();
            int start = -1;
            for (int at = 0; at < lower.length(); at++) {
                char character = lower.charAt(at);
                boolean isInside = Character.isLetterOrDigit(character) || character == '_';
                if (isInside && start < 0) {
                    start = at;
                } else if (!isInside && start >= 0) {
                    words.collect(lower.substring(start, at));
                    start = -1;
                }
            }
            if (start >= 0) {
                words.collect(lower.substring(start));
            }
        }
    }

    /** Emits a word's count at the end of the input, when the last watermark fires the timer. */
    private static final class Count extends KeyedProcessFunction<String, String, Tuple2<String, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String word, Context context, Collector<Tuple2<String, Long>> counts) throws Exception {
            Long before = count.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            count.update(before == null ? 1 : before + 1);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Tuple2<String, Long>> counts) throws Exception {
            counts.collect(Tuple2.of(context.getCurrentKey(), count.value()));
        }
    }

    private static final class Collect implements Sink<Tuple2<String, Long>> {
        @Override
        public SinkWriter<Tuple2<String, Long>> createWriter(WriterInitContext context) {
            return new SinkWriter<>() {
                @Override
                public void write(Tuple2<String, Long> counted, Context context) {
                    COUNTS.merge(counted.f0, counted.f1, Long::sum);
                }

                @Override
                public void flush(boolean isEndOfInput) {}

                @Override
                public void close() {}
            };
        }
    }
}
