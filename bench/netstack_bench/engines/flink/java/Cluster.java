package netstack.peer;

import org.apache.flink.api.common.operators.SlotSharingGroup;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.UnmodifiableConfiguration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.minicluster.RpcServiceSharing;

/**
 * A MiniCluster of two task managers: the source runs on one, every sink on the other, TCP loopback between them.
 *
 * <p>What keeps them apart are made-up resources: a source asks for memory that only the first task manager claims to
 * have, a sink for more processors than it has.
 */
final class Cluster {
    private static final int SOURCE_HEAP_MB = 1_000_000;

    private Cluster() {}

    static SlotSharingGroup sourceSlots() {
        return SlotSharingGroup.newBuilder("sources").setCpuCores(1).setTaskHeapMemoryMB(SOURCE_HEAP_MB).build();
    }

    static SlotSharingGroup sinkSlots() {
        return SlotSharingGroup.newBuilder("sinks").setCpuCores(2).setTaskHeapMemoryMB(1).build();
    }

    static MiniCluster start(Cell cell) throws Exception {
        MiniCluster cluster = new MiniCluster(new TwoSides(cell));
        cluster.start();
        return cluster;
    }

    private static final class TwoSides extends MiniClusterConfiguration {
        private final UnmodifiableConfiguration sourceSide;
        private final UnmodifiableConfiguration sinkSide;
        private int started;

        TwoSides(Cell cell) {
            super(common(cell), 2, RpcServiceSharing.SHARED, null, MiniCluster.HaServices.CONFIGURED, null);
            sourceSide = side(super.getConfiguration(), 1, SOURCE_HEAP_MB);
            sinkSide = side(super.getConfiguration(), 2 * cell.channels, cell.channels);
        }

        @Override
        public UnmodifiableConfiguration getConfiguration() {
            for (StackTraceElement caller : Thread.currentThread().getStackTrace()) {
                if (caller.getMethodName().equals("startTaskManager")) {
                    return started++ == 0 ? sourceSide : sinkSide;
                }
            }
            return super.getConfiguration();
        }

        private static UnmodifiableConfiguration side(Configuration common, int cores, int heapMb) {
            Configuration made = new Configuration(common);
            made.setString("taskmanager.cpu.cores", String.valueOf(cores));
            made.setString("taskmanager.memory.task.heap.size", heapMb + "m");
            return new UnmodifiableConfiguration(made);
        }

        private static Configuration common(Cell cell) {
            Configuration made = new Configuration();
            long buffers = (long) cell.channels * (11 + Math.max(0, cell.exclusiveBuffers) + Math.max(0, cell.floatingBuffers)) + 64;
            long memory = cell.memoryBytes > 0 ? cell.memoryBytes : Math.max(64 << 20, buffers * cell.segmentBytes);
            made.setString("taskmanager.memory.network.min", memory + "b");
            made.setString("taskmanager.memory.network.max", memory + "b");
            made.setString("taskmanager.memory.segment-size", cell.segmentBytes + "b");
            if (cell.debloatMs > 0) {
                made.setString("taskmanager.network.memory.buffer-debloat.enabled", "true");
                made.setString("taskmanager.network.memory.buffer-debloat.target", cell.debloatMs + "ms");
            }
            if (cell.exclusiveBuffers >= 0) {
                made.setString("taskmanager.network.memory.buffers-per-channel", String.valueOf(cell.exclusiveBuffers));
                made.setString("taskmanager.network.memory.floating-buffers-per-gate", String.valueOf(cell.floatingBuffers));
                made.setString("taskmanager.network.memory.max-overdraft-buffers-per-gate", String.valueOf(cell.overdraftBuffers));
            }
            made.setString("cluster.fine-grained-resource-management.enabled", "true");
            made.setString("restart-strategy.type", "none");
            made.setString("web.checkpoints.history", String.valueOf(Checkpoints.MOST));
            made.setString("rest.address", "127.0.0.1");
            made.setString("rest.bind-port", "0");
            made.setString("metrics.reporters", "cell");
            made.setString("metrics.reporter.cell.factory.class", Reporter.Factory.class.getName());
            made.setString("metrics.scope.task", "<task_name>.<subtask_index>");
            return made;
        }
    }
}
