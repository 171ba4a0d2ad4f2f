package netstack.shuffle;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
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
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.runtime.shuffle.ShuffleEnvironment;
import org.apache.flink.runtime.shuffle.ShuffleIOOwnerContext;

/**
 * One task manager's: a netstack process beside it serves what its tasks write; what they read comes by Flink's gates.
 *
 * <p>{@code netstack.shuffle.command} says how that process starts, its words separated by {@code |}. The path of the
 * socket and the size of a network buffer are appended; it prints the port at which it serves.
 */
final class NetstackShuffleEnvironment implements ShuffleEnvironment<ResultPartitionWriter, SingleInputGate> {
    static final String COMMAND = "netstack.shuffle.command";

    private final NettyShuffleEnvironment flinks;
    private final Configuration configuration;
    private final Map<ResultPartitionID, NetstackResultPartition> open = new ConcurrentHashMap<>();
    private Path folder;
    private Process process;

    NetstackShuffleEnvironment(NettyShuffleEnvironment flinks, Configuration configuration) {
        this.flinks = flinks;
        this.configuration = configuration;
    }

    @Override
    public int start() throws IOException {
        flinks.start();
        String command = configuration.getString(COMMAND, null);
        if (command == null) {
            throw new IOException("set " + COMMAND + ": how the netstack process of a task manager starts");
        }
        folder = Files.createTempDirectory("netstack-shuffle-");
        List<String> words = new ArrayList<>(List.of(command.split("\\|")));
        words.add(socket().toString());
        words.add(String.valueOf(configuration.get(TaskManagerOptions.MEMORY_SEGMENT_SIZE).getBytes()));
        process = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String port = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        if (port == null) {
            throw new IOException("the netstack process has ended: " + command);
        }
        return Integer.parseInt(port.trim());
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
        for (ResultPartitionDeploymentDescriptor descriptor : descriptors) {
            if (!descriptor.getPartitionType().isPipelinedOrPipelinedBoundedResultPartition()) {
                throw new UnsupportedOperationException(
                        "netstack serves pipelined partitions, not " + descriptor.getPartitionType());
            }
            NetstackResultPartition writer = new NetstackResultPartition(
                    socket(),
                    writers.size(),
                    descriptor.getShuffleDescriptor().getResultPartitionID(),
                    descriptor.getNumberOfSubpartitions(),
                    descriptor.getMaxParallelism(),
                    open);
            open.put(writer.getPartitionId(), writer);
            writers.add(writer);
        }
        return writers;
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
        if (process != null) {
            process.destroy();
            process.waitFor();
        }
        if (folder != null) {
            Files.deleteIfExists(socket());
            Files.deleteIfExists(folder);
        }
        flinks.close();
    }
}
