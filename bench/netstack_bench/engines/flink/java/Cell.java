package netstack.peer;

import java.io.Serializable;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** The settings of one cell, as they came in a line of JSON. Rates are in records a second; 0 is without a limit. */
final class Cell implements Serializable {
    final int recordBytes;
    final int channels;
    final long timeoutMs;
    final double rate;
    final double consumeRate;
    final double seconds;
    final double warmupSeconds;
    final long records;
    final long checkpointMs;
    final boolean unaligned;
    final int segmentBytes;
    final long debloatMs;
    final long memoryBytes;
    /** Flink 1.x only; -1 where it is a constant. */
    final int exclusiveBuffers;
    final int floatingBuffers;
    final int overdraftBuffers;
    /** What the records repeat; null: all have the same size and go to one sink after the other. */
    final transient Rows rows;

    Cell(JsonNode line) {
        recordBytes = line.path("record_bytes").asInt(8);
        channels = line.path("channels").asInt(1);
        timeoutMs = line.path("timeout_ms").asLong(100);
        rate = line.path("rate").asDouble(0);
        consumeRate = line.path("consume_rate").asDouble(0);
        seconds = line.path("seconds").asDouble(0);
        warmupSeconds = line.path("warmup_seconds").asDouble(0.3);
        records = line.path("records").asLong(0);
        checkpointMs = line.path("checkpoint_ms").asLong(0);
        unaligned = line.path("unaligned").asBoolean(false);
        segmentBytes = line.path("segment_bytes").asInt(32 * 1024);
        debloatMs = line.path("debloat_ms").asLong(0);
        memoryBytes = line.path("memory_bytes").asLong(0);
        exclusiveBuffers = line.path("exclusive_buffers").asInt(-1);
        floatingBuffers = line.path("floating_buffers").asInt(-1);
        overdraftBuffers = line.path("overdraft_buffers").asInt(-1);
        rows = line.has("rows_file") ? Rows.of(line.path("rows_file").asText(), channels) : null;
    }

    /** Cells with the same key run on the same cluster. */
    String clusterKey() {
        return channels + "/" + segmentBytes + "/" + debloatMs + "/" + memoryBytes + "/" + exclusiveBuffers + "/" + floatingBuffers + "/" + overdraftBuffers;
    }

    int sizeOf(long index) {
        return rows == null ? recordBytes : rows.sizeOf(index);
    }

    int mostBytes() {
        return rows == null ? recordBytes : rows.largest;
    }

    /** Whether a record may come after another at a sink; {@code last} is negative for the first. */
    boolean follows(long last, long index) {
        if (rows != null && rows.hasSinks()) {
            return last < 0 ? rows.isFirst(index) : index == rows.after(last);
        }
        return last < 0 ? index < channels : index == last + channels;
    }

    /** When record {@code index} is due, in nanoseconds after the start; only with a rate. */
    long dueNs(long index) {
        return (long) (index * (1e9 / rate));
    }
}
