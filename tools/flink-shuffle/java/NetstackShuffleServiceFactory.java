package netstack.shuffle;

import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.io.network.NettyShuffleServiceFactory;
import org.apache.flink.runtime.io.network.api.writer.ResultPartitionWriter;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.runtime.shuffle.NettyShuffleDescriptor;
import org.apache.flink.runtime.shuffle.PartitionDescriptor;
import org.apache.flink.runtime.shuffle.ProducerDescriptor;
import org.apache.flink.runtime.shuffle.ShuffleDescriptor;
import org.apache.flink.runtime.shuffle.ShuffleEnvironment;
import org.apache.flink.runtime.shuffle.ShuffleEnvironmentContext;
import org.apache.flink.runtime.shuffle.ShuffleMaster;
import org.apache.flink.runtime.shuffle.ShuffleMasterContext;
import org.apache.flink.runtime.shuffle.ShuffleServiceFactory;
import org.apache.flink.runtime.shuffle.TaskInputsOutputsDescriptor;

/**
 * A shuffle service whose result partitions are served by netstack; the input gates are Flink's own.
 *
 * <p>Configure it as {@code shuffle-service-factory.class}.
 */
public final class NetstackShuffleServiceFactory
        implements ShuffleServiceFactory<NettyShuffleDescriptor, ResultPartitionWriter, SingleInputGate> {

    private final NettyShuffleServiceFactory flinks = new NettyShuffleServiceFactory();

    @Override
    public ShuffleMaster<NettyShuffleDescriptor> createShuffleMaster(ShuffleMasterContext context) {
        return new Master(flinks.createShuffleMaster(context));
    }

    @Override
    public ShuffleEnvironment<ResultPartitionWriter, SingleInputGate> createShuffleEnvironment(
            ShuffleEnvironmentContext context) {
        return new NetstackShuffleEnvironment(
                flinks.createShuffleEnvironment(context), context.getConfiguration(), context.getTmpDirPaths()[0]);
    }

    /** Flink's own, except that no partition is local to its consumers: all of them are read over a connection. */
    private static final class Master implements ShuffleMaster<NettyShuffleDescriptor> {
        private final ShuffleMaster<NettyShuffleDescriptor> flinks;

        Master(ShuffleMaster<NettyShuffleDescriptor> flinks) {
            this.flinks = flinks;
        }

        @Override
        public CompletableFuture<NettyShuffleDescriptor> registerPartitionWithProducer(
                JobID job, PartitionDescriptor partition, ProducerDescriptor producer) {
            ResourceID elsewhere = new ResourceID("netstack-of-" + producer.getProducerLocation().getResourceIdString());
            return flinks.registerPartitionWithProducer(
                    job,
                    partition,
                    new ProducerDescriptor(
                            elsewhere,
                            producer.getProducerExecutionId(),
                            producer.getAddress(),
                            producer.getDataPort()));
        }

        @Override
        public void releasePartitionExternally(ShuffleDescriptor descriptor) {
            flinks.releasePartitionExternally(descriptor);
        }

        @Override
        public MemorySize computeShuffleMemorySizeForTask(TaskInputsOutputsDescriptor task) {
            return flinks.computeShuffleMemorySizeForTask(task);
        }
    }
}
