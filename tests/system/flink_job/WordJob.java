package words;

import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.CloseableIterator;

/** A user's job: classes and lambdas that are in no jar of Flink's. Prints how many words were counted exactly. */
public final class WordJob {
    private static final int WORDS = 32;

    public static final class Counted {
        public String word;
        public long count;

        public Counted() {}

        Counted(String word, long count) {
            this.word = word;
            this.count = count;
        }
    }

    private WordJob() {}

    /** Counts in this JVM, over all attempts and class loaders. */
    static long more(String name) {
        return (Long) System.getProperties().merge("words." + name, 1L, (a, b) -> (Long) a + (Long) b);
    }

    static Counted sum(Counted a, Counted b, long failsAfterMs) throws InterruptedException {
        if (failsAfterMs > 0 && more("summed") == 1) {
            System.out.println("will fail");
            Thread.sleep(failsAfterMs);
            throw new IllegalStateException("fails once");
        }
        return new Counted(a.word, a.count + b.count);
    }

    static Counted make(long number) {
        more("made");
        return new Counted("word " + number % WORDS, 1);
    }

    /** Arguments: STREAMING or BATCH, occurrences of each word, records a second, after how many milliseconds a consumer fails once. */
    public static void main(String[] arguments) throws Exception {
        long each = Long.parseLong(arguments[1]);
        long failsAfterMs = arguments.length > 3 ? Long.parseLong(arguments[3]) : 0;
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment();
        job.setRuntimeMode(RuntimeExecutionMode.valueOf(arguments[0]));
        DataGeneratorSource<Counted> source = new DataGeneratorSource<>(
                number -> make(number), each * WORDS,
                RateLimiterStrategy.perSecond(Double.parseDouble(arguments[2])), Types.POJO(Counted.class));
        DataStream<Counted> counts = job.fromSource(source, WatermarkStrategy.noWatermarks(), "words")
                .keyBy(one -> one.word)
                .reduce((a, b) -> sum(a, b, failsAfterMs));
        Map<String, Long> highest = new TreeMap<>();
        try (CloseableIterator<Counted> results = counts.executeAndCollect("words")) {
            results.forEachRemaining(one -> highest.merge(one.word, one.count, Math::max));
        }
        long exact = highest.values().stream().filter(count -> count == each).count();
        System.out.println("words with an exact count: " + exact + " of " + WORDS);
        System.out.println("records made: " + System.getProperties().get("words.made")
                + ", summed: " + System.getProperties().get("words.summed"));
    }
}
