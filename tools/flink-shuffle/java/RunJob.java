package netstack.shuffle;

import java.io.File;
import java.util.Arrays;
import org.apache.flink.client.ClientUtils;
import org.apache.flink.client.program.PackagedProgram;
import org.apache.flink.configuration.ConfigUtils;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.core.execution.DefaultExecutorServiceLoader;
import org.apache.flink.runtime.checkpoint.CheckpointStatsSnapshot;
import org.apache.flink.runtime.checkpoint.FailedCheckpointStats;
import org.apache.flink.runtime.client.JobStatusMessage;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;

/**
 * Runs a program on a MiniCluster of two task managers whose shuffle is netstack's.
 *
 * <p>Arguments: slots of each task manager, the jar of the program ("-" is the demo), its main class ("-" is what the
 * jar says), then the program's own. Every system property that starts with "flink." is an option of the cluster.
 */
public final class RunJob {
    private static final String OPTION = "flink.";

    private RunJob() {}

    public static void main(String[] arguments) {
        int code = 1;
        try {
            run(arguments);
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(code); // threads of a failed job's client may go on
    }

    private static void run(String[] arguments) throws Exception {
        int slots = Integer.parseInt(arguments[0]);
        Configuration configuration = new Configuration();
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith(OPTION)) {
                configuration.setString(name.substring(OPTION.length()), System.getProperty(name));
            }
        }
        configuration.setString("shuffle-service-factory.class", NetstackShuffleServiceFactory.class.getName());
        configuration.setString("rest.address", "127.0.0.1");
        configuration.setString("rest.bind-port", "0");
        MiniClusterConfiguration how = new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration).setNumTaskManagers(2).setNumSlotsPerTaskManager(slots).build();
        try (MiniCluster cluster = new MiniCluster(how)) {
            cluster.start();
            int port = cluster.getRestAddress().get().getPort();
            System.out.println("Flink's page: http://127.0.0.1:" + port);
            configuration.setString("execution.target", "remote");
            configuration.setString("execution.attached", "true");
            configuration.setString("rest.port", String.valueOf(port));
            PackagedProgram.Builder program =
                    PackagedProgram.newBuilder()
                            .setConfiguration(configuration)
                            .setArguments(Arrays.copyOfRange(arguments, 3, arguments.length));
            if (arguments[1].equals("-")) {
                program.setEntryPointClassName(DemoJob.class.getName());
            } else {
                program.setJarFile(new File(arguments[1]));
                if (!arguments[2].equals("-")) {
                    program.setEntryPointClassName(arguments[2]);
                }
            }
            try (PackagedProgram built = program.build()) {
                ConfigUtils.encodeCollectionToConfig(
                        configuration, PipelineOptions.JARS, built.getJobJarAndDependencies(), Object::toString);
                ClientUtils.executeProgram(new DefaultExecutorServiceLoader(), configuration, built, false, false);
            } finally {
                for (JobStatusMessage job : cluster.listJobs().get()) {
                    tellCheckpoints(cluster.getArchivedExecutionGraph(job.getJobId()).get().getCheckpointStatsSnapshot());
                }
            }
        }
    }

    private static void tellCheckpoints(CheckpointStatsSnapshot statistics) {
        if (statistics != null) {
            System.out.println("checkpoints: " + statistics.getCounts().getNumberOfCompletedCheckpoints() + " completed, "
                    + statistics.getCounts().getNumberOfFailedCheckpoints() + " failed, "
                    + statistics.getCounts().getNumberOfRestoredCheckpoints() + " restored; "
                    + statistics.getSummaryStats().getPersistedDataStats().getMaximum()
                    + " bytes in flight stored at most");
            FailedCheckpointStats failed = statistics.getHistory().getLatestFailedCheckpoint();
            if (failed != null) {
                System.out.println("the last one that failed: " + failed.getFailureMessage());
            }
        }
    }
}
