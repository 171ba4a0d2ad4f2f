package netstack.shuffle;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.checkpoint.CheckpointException;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.checkpoint.channel.ResultSubpartitionInfo;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.execution.SuppressRestartsException;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfData;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.api.SubtaskConnectionDescriptor;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.api.writer.ResultPartitionWriter;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.BufferBuilder;
import org.apache.flink.runtime.io.network.buffer.BufferConsumer;
import org.apache.flink.runtime.io.network.buffer.FreeingBufferRecycler;
import org.apache.flink.runtime.io.network.buffer.NetworkBuffer;
import org.apache.flink.runtime.io.network.metrics.ResultPartitionBytesCounter;
import org.apache.flink.runtime.io.network.partition.BufferAvailabilityListener;
import org.apache.flink.runtime.io.network.partition.ChannelStateHolder;
import org.apache.flink.runtime.io.network.partition.CheckpointedResultPartition;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionIndexSet;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionView;
import org.apache.flink.runtime.metrics.groups.TaskIOMetricGroup;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;

/**
 * A task's output: records and events go over a Unix socket to the netstack process, whose partition it is.
 *
 * <p>Frames there: kind (1 byte), subpartition or flag (4), size (4), bytes. Frames back: kind (1), number (8),
 * subpartition (4), size (4), bytes. See flink_shuffle.py, the other end.
 */
final class NetstackResultPartition
        implements ResultPartitionWriter, CheckpointedResultPartition, ChannelStateHolder {
    private static final int EMIT = 0, BROADCAST = 1, FLUSH = 2, EVENT = 3, FINISH = 4, TIME_OUT = 5, FORGET = 6, RECOVERED = 7;
    private static final int READY = 1, TAKEN = 2, OVERTAKEN = 3, PROCESSED = 4, FINISHED = 5, RELEASED = 6;
    private static final int FRAME_BYTES = 9;
    /** Written and not taken by netstack: above it the task counts as back-pressured. */
    private static final long WINDOW_BYTES = 128 * 1024;
    private static final int RECOVERED_BYTES = 32 * 1024;
    /** How long a new task waits for a netstack process that is being started again. */
    private static final long CONNECT_NS = 30_000_000_000L;

    private final Path socket;
    private final int subtask;
    private final int index;
    private final ResultPartitionID id;
    private final int subpartitions;
    private final int keyGroups;
    /** netstack stores it until {@code release}, and consumers read it, perhaps again, when it is finished. */
    private final boolean isKept;
    private final Map<ResultPartitionID, NetstackResultPartition> open;

    private final ByteBuffer pending = ByteBuffer.allocateDirect(1 << 16);
    private final CompletableFuture<Void> processed = new CompletableFuture<>();
    private final CompletableFuture<Void> finishing = new CompletableFuture<>();
    /** By checkpoint: what its barrier overtakes in each subpartition, as soon as that is known. */
    private final Map<Long, CompletableFuture<List<Buffer>>[]> overtaken = new ConcurrentHashMap<>();
    private final Object windowLock = new Object();

    private SocketChannel channel;
    private ChannelStateWriter states;
    private final ResultPartitionBytesCounter bytes;
    private TaskIOMetricGroup metrics;
    private long written;
    private long taken;
    private CompletableFuture<Void> room = new CompletableFuture<>();
    /** Set when the netstack process has ended: then a write fails, and nothing waits for an answer. */
    private volatile IOException failure;
    private volatile boolean isFinished;
    private volatile boolean isReleased;

    NetstackResultPartition(
            Path socket,
            int subtask,
            int index,
            ResultPartitionID id,
            int subpartitions,
            int keyGroups,
            boolean isKept,
            Map<ResultPartitionID, NetstackResultPartition> open) {
        this.socket = socket;
        this.subtask = subtask;
        this.index = index;
        this.id = id;
        this.subpartitions = subpartitions;
        this.keyGroups = keyGroups;
        this.isKept = isKept;
        this.open = open;
        this.bytes = new ResultPartitionBytesCounter(subpartitions);
    }

    @Override
    public void setup() throws IOException {
        channel = connect();
        ByteBuf hex = Unpooled.buffer();
        id.getPartitionId().writeTo(hex);
        id.getProducerId().writeTo(hex);
        byte[] name = ByteBufUtil.hexDump(hex).getBytes(StandardCharsets.US_ASCII);
        synchronized (this) {
            pending.putInt(name.length).putInt(subpartitions).put((byte) (isKept ? 1 : 0)).put(name);
            drain();
        }
        DataInputStream answers = new DataInputStream(Channels.newInputStream(channel));
        if (answers.readByte() != READY) {
            throw new IOException("netstack refused partition " + id);
        }
        answers.readFully(new byte[16]);
        Thread reader = new Thread(() -> listen(answers), "netstack-partition-" + id);
        reader.setDaemon(true);
        reader.start();
    }

    private SocketChannel connect() throws IOException {
        long untilNs = System.nanoTime() + CONNECT_NS;
        while (true) {
            try {
                return SocketChannel.open(UnixDomainSocketAddress.of(socket));
            } catch (SocketException refused) {
                if (System.nanoTime() > untilNs) {
                    throw new IOException("the netstack process of this task manager does not listen at " + socket, refused);
                }
                LockSupport.parkNanos(50_000_000L);
                if (Thread.interrupted()) { // the task is cancelled
                    throw new InterruptedIOException();
                }
            }
        }
    }

    // ------------------------------------------------------------------------------------------- what tasks write

    @Override
    public void emitRecord(ByteBuffer record, int subpartition) throws IOException {
        write(EMIT, subpartition, withoutLength(record));
    }

    @Override
    public void broadcastRecord(ByteBuffer record) throws IOException {
        write(BROADCAST, 0, withoutLength(record));
    }

    /** netstack writes the length of a record itself. */
    private static ByteBuffer withoutLength(ByteBuffer record) {
        record.position(record.position() + 4);
        return record;
    }

    @Override
    public void broadcastEvent(AbstractEvent event, boolean hasPriority) throws IOException {
        if (event instanceof CheckpointBarrier) {
            CheckpointOptions options = ((CheckpointBarrier) event).getCheckpointOptions();
            if (options.isUnalignedCheckpoint() || options.isTimeoutable()) {
                awaitOvertaken(((CheckpointBarrier) event).getId());
            }
        }
        synchronized (this) {
            write(EVENT, hasPriority ? 1 : 0, EventSerializer.toSerializedEvent(event));
            drain();
        }
    }

    @SuppressWarnings("unchecked")
    private void awaitOvertaken(long checkpoint) {
        CompletableFuture<List<Buffer>>[] found = new CompletableFuture[subpartitions];
        for (int at = 0; at < subpartitions; at++) {
            found[at] = new CompletableFuture<>();
        }
        overtaken.put(checkpoint, found);
        for (int at = 0; at < subpartitions; at++) {
            states.addOutputDataFuture(
                    checkpoint, getCheckpointedSubpartitionInfo(at), ChannelStateWriter.SEQUENCE_NUMBER_UNKNOWN, found[at]);
        }
    }

    @Override
    public void alignedBarrierTimeout(long checkpoint) throws IOException {
        control(TIME_OUT, checkpoint);
    }

    @Override
    public void abortCheckpoint(long checkpoint, CheckpointException cause) {
        CompletableFuture<List<Buffer>>[] waiting = overtaken.remove(checkpoint);
        if (waiting != null) {
            for (CompletableFuture<List<Buffer>> each : waiting) {
                each.completeExceptionally(cause);
            }
        }
        try {
            control(FORGET, checkpoint);
        } catch (IOException gone) {
            // the task fails by itself
        }
    }

    private synchronized void control(int kind, long number) throws IOException {
        write(kind, 0, ByteBuffer.allocate(8).putLong(0, number));
        drain();
    }

    @Override
    public void notifyEndOfData(StopMode mode) throws IOException {
        broadcastEvent(new EndOfData(mode), false);
    }

    @Override
    public synchronized void flushAll() {
        try {
            write(FLUSH, 0, ByteBuffer.allocate(0));
            drain();
        } catch (IOException gone) {
            // the task fails when it writes next
        }
    }

    @Override
    public void flush(int subpartition) {
        flushAll();
    }

    @Override
    public void finish() throws IOException {
        synchronized (this) {
            write(FINISH, 0, ByteBuffer.allocate(0));
            drain();
        }
        finishing.join();
        isFinished = true;
    }

    private synchronized void write(int kind, int subpartition, ByteBuffer bytes) throws IOException {
        if (failure != null) {
            throw new IOException(failure.getMessage(), failure);
        }
        int size = bytes.remaining();
        if (metrics != null && kind <= BROADCAST) {
            count(kind, subpartition, size);
        }
        if (pending.remaining() < FRAME_BYTES) {
            drain();
        }
        pending.put((byte) kind).putInt(subpartition).putInt(size);
        while (bytes.hasRemaining()) {
            if (!pending.hasRemaining()) {
                drain();
            }
            int part = Math.min(pending.remaining(), bytes.remaining());
            pending.put(bytes.slice().limit(part));
            bytes.position(bytes.position() + part);
        }
        synchronized (windowLock) {
            written += FRAME_BYTES + size;
        }
        if (pending.position() > pending.capacity() / 2) {
            drain();
        }
    }

    private void count(int kind, int subpartition, int size) {
        metrics.getNumBytesOutCounter().inc(kind == BROADCAST ? (long) size * subpartitions : size);
        if (kind == BROADCAST) {
            this.bytes.incAll(size);
        } else {
            this.bytes.inc(subpartition, size);
        }
    }

    private void drain() throws IOException {
        pending.flip();
        while (pending.hasRemaining()) {
            channel.write(pending);
        }
        pending.clear();
    }

    // ------------------------------------------------------------------------------------------ what netstack says

    private void listen(DataInputStream answers) {
        try {
            while (true) {
                int kind = answers.readByte();
                long number = answers.readLong();
                int subpartition = answers.readInt();
                byte[] bytes = new byte[answers.readInt()];
                answers.readFully(bytes);
                if (kind == TAKEN) {
                    take(number);
                } else if (kind == OVERTAKEN) {
                    complete(number, subpartition, bytes);
                } else if (kind == PROCESSED) {
                    processed.complete(null);
                } else if (kind == FINISHED) {
                    finishing.complete(null);
                } else if (kind == RELEASED) {
                    release(null);
                    return;
                }
            }
        } catch (IOException gone) {
            IOException cause = new IOException("netstack, which serves partition " + id + ", has ended", gone);
            finishing.completeExceptionally(cause);
            if (gone instanceof EOFException) {
                processed.completeExceptionally(cause);
            }
            giveUp(cause);
        }
    }

    /** A task that waits for room goes on, and fails at its next write. */
    private void giveUp(IOException cause) {
        failure = cause;
        for (CompletableFuture<List<Buffer>>[] each : overtaken.values()) {
            for (CompletableFuture<List<Buffer>> one : each) {
                one.completeExceptionally(cause);
            }
        }
        synchronized (windowLock) {
            room.complete(null);
        }
    }

    private void take(long number) {
        CompletableFuture<Void> hasRoom = null;
        synchronized (windowLock) {
            taken = number;
            if (written - taken <= WINDOW_BYTES) {
                hasRoom = room;
                room = new CompletableFuture<>();
            }
        }
        if (hasRoom != null) {
            hasRoom.complete(null);
        }
    }

    private void complete(long checkpoint, int subpartition, byte[] bytes) {
        CompletableFuture<List<Buffer>>[] waiting = overtaken.get(checkpoint);
        if (waiting == null) {
            return;
        }
        waiting[subpartition].complete(bytes.length == 0 ? List.of() : List.of(bufferOf(bytes)));
        for (CompletableFuture<List<Buffer>> each : waiting) {
            if (!each.isDone()) {
                return;
            }
        }
        overtaken.remove(checkpoint);
    }

    private static Buffer bufferOf(byte[] bytes) {
        return new NetworkBuffer(
                MemorySegmentFactory.wrap(bytes), FreeingBufferRecycler.INSTANCE, Buffer.DataType.DATA_BUFFER, bytes.length);
    }

    @Override
    public CompletableFuture<?> getAvailableFuture() {
        synchronized (windowLock) {
            return failure != null || written - taken <= WINDOW_BYTES ? AVAILABLE : room;
        }
    }

    @Override
    public CompletableFuture<Void> getAllDataProcessedFuture() {
        return processed;
    }

    // --------------------------------------------------------------------------- what was in flight at a checkpoint

    @Override
    public void setChannelStateWriter(ChannelStateWriter writer) {
        states = writer;
    }

    @Override
    public ResultSubpartitionInfo getCheckpointedSubpartitionInfo(int subpartition) {
        return new ResultSubpartitionInfo(index, subpartition);
    }

    @Override
    public BufferBuilder requestBufferBuilderBlocking() {
        return new BufferBuilder(
                MemorySegmentFactory.allocateUnpooledSegment(RECOVERED_BYTES), FreeingBufferRecycler.INSTANCE);
    }

    @Override
    public void addRecovered(int subpartition, BufferConsumer consumer) throws IOException {
        Buffer found = consumer.build();
        if (!consumer.isBuffer()) {
            try {
                checkParallelism(subpartition, EventSerializer.fromBuffer(found, getClass().getClassLoader()));
            } finally {
                found.recycleBuffer();
                consumer.close();
            }
            return;
        }
        try {
            write(RECOVERED, subpartition, found.getNioBufferReadable());
        } finally {
            found.recycleBuffer();
            consumer.close();
        }
    }

    /** Before the bytes of a channel comes which one it was. Another one: the parallelism of producer or consumer changed. */
    private void checkParallelism(int subpartition, AbstractEvent event) {
        if (event instanceof SubtaskConnectionDescriptor) {
            SubtaskConnectionDescriptor was = (SubtaskConnectionDescriptor) event;
            // Its output is the producer's, its input the consumer's.
            if (was.getOutputSubtaskIndex() != subtask || was.getInputSubtaskIndex() != subpartition) {
                throw new SuppressRestartsException(new UnsupportedOperationException(
                        "netstack restores records in flight only with the parallelism of the checkpoint: what subtask "
                                + was.getOutputSubtaskIndex() + " had sent to subtask " + was.getInputSubtaskIndex()
                                + " would now go from subtask " + subtask + " to subtask " + subpartition
                                + "; restore with that parallelism, or from a savepoint or an aligned checkpoint"));
            }
        }
    }

    /** Parallelism stays as it was, so consumers need no word of where what was recovered ends. */
    @Override
    public synchronized void finishReadRecoveredState(boolean notifyAndBlockOnCompletion) throws IOException {
        drain();
    }

    // ------------------------------------------------------------------------------------------------------ the rest

    @Override
    public void fail(Throwable cause) {
        release(cause);
    }

    @Override
    public void release(Throwable cause) {
        isReleased = true;
        open.remove(id);
        closeChannel();
    }

    /** A finished partition is netstack's until it was read; one that is not has failed. */
    @Override
    public void close() {
        if (!isFinished) {
            release(null);
        }
    }

    private void closeChannel() {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException gone) {
            // it is closed
        }
    }

    @Override
    public ResultSubpartitionView createSubpartitionView(
            ResultSubpartitionIndexSet which, BufferAvailabilityListener listener) throws IOException {
        throw new IOException("netstack serves partition " + id + ": nobody reads it locally");
    }

    @Override
    public void setMetricGroup(TaskIOMetricGroup group) {
        metrics = group;
        group.registerResultPartitionBytesCounter(id.getPartitionId(), bytes);
    }

    @Override
    public void setMaxOverdraftBuffersPerGate(int most) {}

    @Override
    public boolean isFinished() {
        return isFinished;
    }

    @Override
    public boolean isReleased() {
        return isReleased;
    }

    @Override
    public ResultPartitionID getPartitionId() {
        return id;
    }

    @Override
    public int getNumberOfSubpartitions() {
        return subpartitions;
    }

    @Override
    public int getNumTargetKeyGroups() {
        return keyGroups;
    }
}
