package netstack.shuffle;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.runtime.deployment.InputGateDeploymentDescriptor;
import org.apache.flink.runtime.deployment.ResultPartitionDeploymentDescriptor;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.executiongraph.PartitionInfo;
import org.apache.flink.runtime.io.network.NettyShuffleEnvironment;
import org.apache.flink.runtime.io.network.api.writer.ResultPartitionWriter;
import org.apache.flink.runtime.io.network.partition.PartitionProducerStateProvider;
import org.apache.flink.runtime.execution.SuppressRestartsException;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.runtime.shuffle.ShuffleEnvironment;
import org.apache.flink.runtime.shuffle.ShuffleIOOwnerContext;
import org.apache.flink.util.FatalExitExceptionHandler;
import org.apache.flink.util.FileUtils;

/**
 * One task manager's: a netstack process beside it serves what its tasks write; what they read comes by Flink's gates.
 *
 * <p>{@code netstack.shuffle.command} says how that process starts, its words separated by {@code |}. The path of the
 * socket, the size of a network buffer and the port (0: any) are appended; it prints the port at which it serves.
 */
final class NetstackShuffleEnvironment implements ShuffleEnvironment<ResultPartitionWriter, SingleInputGate> {
    static final String COMMAND = "netstack.shuffle.command";
    private static final int SOCKET_BYTES = 107;
    private static final int ATTEMPTS = 3;
    private static final long CLOSE_S = 10;

    private final NettyShuffleEnvironment flinks;
    private final Configuration configuration;
    private final Map<ResultPartitionID, NetstackResultPartition> open = new ConcurrentHashMap<>();
    private final Path scratch;
    private Path folder;
    private int port;
    private volatile Process process;
    private volatile boolean isClosed;

    NetstackShuffleEnvironment(NettyShuffleEnvironment flinks, Configuration configuration, String scratch) {
        this.flinks = flinks;
        this.configuration = configuration;
        this.scratch = Path.of(scratch);
    }

    @Override
    public int start() throws IOException {
        flinks.start();
        folder = Files.createTempDirectory(Files.createDirectories(scratch), "netstack-");
        int length = socket().toString().getBytes(StandardCharsets.UTF_8).length;
        if (length > SOCKET_BYTES) {
            throw new IOException("the path of a socket has at most " + SOCKET_BYTES + " bytes, and " + socket() + " has "
                    + length + ": set io.tmp.dirs to a shorter path");
        }
        launch();
        return port;
    }

    /** Starts the netstack process; a later one serves at the port of the first, which consumers know. */
    private void launch() throws IOException {
        String command = configuration.getString(COMMAND, null);
        if (command == null) {
            throw new IOException("set " + COMMAND + ": how the netstack process of a task manager starts");
        }
        List<String> words = new ArrayList<>(List.of(command.split("\\|")));
        words.add(socket().toString());
        words.add(String.valueOf(configuration.get(TaskManagerOptions.MEMORY_SEGMENT_SIZE).getBytes()));
        words.add(String.valueOf(port));
        Process started = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String line = new BufferedReader(new InputStreamReader(started.getInputStream())).readLine();
        if (line == null) {
            throw new IOException("the netstack process has ended: " + String.join(" ", words));
        }
        port = Integer.parseInt(line.trim());
        process = started;
        started.onExit().thenRun(this::launchAgain);
    }

    /** The tasks whose partitions the process had fail and are restarted; a task manager that cannot have one ends. */
    private void launchAgain() {
        IOException failure = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            if (isClosed) {
                return;
            }
            try {
                System.err.println("the netstack process of a task manager has ended; another one is started");
                launch();
                if (isClosed) {
                    process.destroy();
                }
                return;
            } catch (IOException error) {
                failure = error;
            }
        }
        FatalExitExceptionHandler.INSTANCE.uncaughtException(Thread.currentThread(), failure);
    }

    private Path socket() {
        return folder.resolve("tasks.sock");
    }

    @Override
    public ShuffleIOOwnerContext createShuffleIOOwnerContext(String name, ExecutionAttemptID id, MetricGroup group) {
        return flinks.createShuffleIOOwnerContext(name, id, group);
    }

    @Override
    public List<ResultPartitionWriter> createResultPartitionWriters(
            ShuffleIOOwnerContext owner, List<ResultPartitionDeploymentDescriptor> descriptors) {
        List<ResultPartitionWriter> writers = new ArrayList<>();
        descriptors.forEach(NetstackShuffleEnvironment::checkServed);
        for (ResultPartitionDeploymentDescriptor descriptor : descriptors) {
            NetstackResultPartition writer = new NetstackResultPartition(
                    socket(),
                    owner.getExecutionAttemptID().getSubtaskIndex(),
                    writers.size(),
                    descriptor.getShuffleDescriptor().getResultPartitionID(),
                    descriptor.getNumberOfSubpartitions(),
                    descriptor.getMaxParallelism(),
                    descriptor.getPartitionType().isBlockingOrBlockingPersistentResultPartition(),
                    open);
            open.put(writer.getPartitionId(), writer);
            writers.add(writer);
        }
        return writers;
    }

    /**
     * Fails the task of a partition that netstack does not serve, and with it the job, once. The failure is here and not
     * in the ShuffleMaster, because then Flink's JobManager did not end after the job (2.3).
     */
    private static void checkServed(ResultPartitionDeploymentDescriptor descriptor) {
        ResultPartitionType type = descriptor.getPartitionType();
        if (type != ResultPartitionType.BLOCKING && !type.isPipelinedOrPipelinedBoundedResultPartition()) {
            throw new SuppressRestartsException(new UnsupportedOperationException(
                    "netstack serves pipelined and blocking partitions to Flink, not " + type
                            + ": set execution.batch-shuffle-mode to ALL_EXCHANGES_BLOCKING or ALL_EXCHANGES_PIPELINED"));
        }
        if (descriptor.isNumberOfPartitionConsumerUndefined()) {
            // Then a consumer reads several subpartitions, and only Flink's own partitions may say which it is.
            throw new SuppressRestartsException(new UnsupportedOperationException(
                    "netstack serves blocking partitions to a parallelism that is known before they are written, which"
                            + " Flink's adaptive batch scheduler does not know: set jobmanager.scheduler to Default"));
        }
    }

    @Override
    public void releasePartitionsLocally(Collection<ResultPartitionID> ids) {
        for (ResultPartitionID id : ids) {
            NetstackResultPartition writer = open.get(id);
            if (writer != null) {
                writer.release(null);
            }
        }
    }

    @Override
    public Collection<ResultPartitionID> getPartitionsOccupyingLocalResources() {
        return new ArrayList<>(open.keySet());
    }

    @Override
    public List<SingleInputGate> createInputGates(
            ShuffleIOOwnerContext owner,
            PartitionProducerStateProvider states,
            List<InputGateDeploymentDescriptor> descriptors) {
        return flinks.createInputGates(owner, states, descriptors);
    }

    @Override
    public boolean updatePartitionInfo(ExecutionAttemptID consumer, PartitionInfo info)
            throws IOException, InterruptedException {
        return flinks.updatePartitionInfo(consumer, info);
    }

    @Override
    public void close() throws Exception {
        isClosed = true;
        if (process != null) {
            process.getOutputStream().close(); // it removes its files and ends
            if (!process.waitFor(CLOSE_S, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        }
        if (folder != null) {
            FileUtils.deleteDirectory(folder.toFile());
        }
        flinks.close();
    }
}
