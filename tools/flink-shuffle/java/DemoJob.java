package netstack.shuffle;

import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** Numbers by key: each counter must end at exactly as many as were sent, whatever failed in between. */
public final class DemoJob {
    private static final int KEYS = 64;
    private static final AtomicBoolean FAILED = new AtomicBoolean();
    private static final AtomicLong SEEN = new AtomicLong();
    private static final AtomicLong EXACT_KEYS = new AtomicLong();

    private DemoJob() {}

    /** Arguments: records in all (a multiple of 64), records a second in all, microseconds of work a record, fail after so many (0: never). */
    public static void main(String[] arguments) throws Exception {
        long records = Long.parseLong(arguments[0]);
        double rate = Double.parseDouble(arguments[1]);
        long workNs = Long.parseLong(arguments[2]) * 1000;
        long failAfter = Long.parseLong(arguments[3]);
        long each = records / KEYS;
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment();
        DataGeneratorSource<Long> numbers = new DataGeneratorSource<>(
                number -> number, each * KEYS, RateLimiterStrategy.perSecond(rate), Types.LONG);
        job.fromSource(numbers, WatermarkStrategy.noWatermarks(), "numbers")
                .keyBy(number -> number % KEYS)
                .process(new Count(each, workNs, failAfter))
                .name("count")
                .sinkTo(new DiscardingSink<>());
        job.execute("netstack shuffle demo");
        System.out.println("keys with an exact count: " + EXACT_KEYS.get() + " of " + KEYS
                + (failAfter > 0 ? ", after a failure: " + FAILED.get() : ""));
    }

    private static final class Count extends KeyedProcessFunction<Long, Long, Long> {
        private final long expected;
        private final long workNs;
        private final long failAfter;
        private transient ValueState<Long> counted;
        private transient ValueState<Long> summed;

        Count(long expected, long workNs, long failAfter) {
            this.expected = expected;
            this.workNs = workNs;
            this.failAfter = failAfter;
        }

        @Override
        public void open(OpenContext context) {
            counted = getRuntimeContext().getState(new ValueStateDescriptor<>("counted", Types.LONG));
            summed = getRuntimeContext().getState(new ValueStateDescriptor<>("summed", Types.LONG));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
            if (workNs > 0) {
                LockSupport.parkNanos(workNs);
            }
            if (failAfter > 0 && SEEN.incrementAndGet() > failAfter && FAILED.compareAndSet(false, true)) {
                throw new IllegalStateException("this task fails once, as asked");
            }
            long count = counted.value() == null ? 1 : counted.value() + 1;
            long sum = summed.value() == null ? number : summed.value() + number;
            counted.update(count);
            summed.update(sum);
            long key = context.getCurrentKey();
            if (count == expected && sum == expected * key + KEYS * (expected * (expected - 1) / 2)) {
                EXACT_KEYS.incrementAndGet();
            } else if (count > expected) {
                throw new IllegalStateException("key " + key + " was counted " + count + " times of " + expected);
            }
            out.collect(count);
        }
    }
}
