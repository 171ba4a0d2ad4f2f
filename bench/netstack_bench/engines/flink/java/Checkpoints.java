package netstack.peer;

import java.io.IOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.checkpoint.AbstractCheckpointStats;
import org.apache.flink.runtime.checkpoint.CheckpointStatsSnapshot;
import org.apache.flink.runtime.checkpoint.CheckpointStatsStatus;
import org.apache.flink.runtime.checkpoint.TaskStateStats;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The checkpoints of a cell: how they are taken, and what Flink's own statistics say of each. */
final class Checkpoints {
    /** Of so many Flink keeps the statistics. */
    static final int MOST = 10_000;

    private Checkpoints() {}

    /** State goes to files, as Flink's default keeps no more than 5 MB a task; a source that ends waits for none. */
    static Path folderOf(Cell cell, Configuration settings) throws IOException {
        if (cell.checkpointMs == 0) {
            return null;
        }
        Path folder = Files.createTempDirectory("netstack-flink-checkpoints-");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", folder.toUri().toString());
        settings.setString("execution.checkpointing.checkpoints-after-tasks-finish", "false");
        return folder;
    }

    static void enable(Cell cell, StreamExecutionEnvironment job) {
        if (cell.checkpointMs > 0) {
            job.enableCheckpointing(cell.checkpointMs, CheckpointingMode.EXACTLY_ONCE);
            job.getCheckpointConfig().enableUnalignedCheckpoints(cell.unaligned);
        }
    }

    static void remove(Path folder) throws IOException {
        if (folder == null) {
            return;
        }
        Files.walkFileTree(folder, new SimpleFileVisitor<>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
                Files.deleteIfExists(file);
                return FileVisitResult.CONTINUE;
            }

            /** Flink itself may still be removing an older checkpoint. */
            @Override
            public FileVisitResult visitFileFailed(Path file, IOException failure) throws IOException {
                if (failure instanceof NoSuchFileException) {
                    return FileVisitResult.CONTINUE;
                }
                throw failure;
            }

            @Override
            public FileVisitResult postVisitDirectory(Path emptied, IOException failure) throws IOException {
                Files.deleteIfExists(emptied);
                return FileVisitResult.CONTINUE;
            }
        });
    }

    /** Those that were triggered and ended between two times of the day, oldest first; times in milliseconds. */
    static List<Map<String, Object>> of(CheckpointStatsSnapshot snapshot, long fromMs, long untilMs) {
        List<Map<String, Object>> found = new ArrayList<>();
        if (snapshot == null) {
            return found;
        }
        for (AbstractCheckpointStats each : snapshot.getHistory().getCheckpoints()) {
            long began = each.getTriggerTimestamp();
            if (began < fromMs || began + each.getEndToEndDuration() > untilMs || each.getEndToEndDuration() < 0) {
                continue;
            }
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("complete", each.getStatus() == CheckpointStatsStatus.COMPLETED);
            told.put("duration_ms", each.getEndToEndDuration());
            told.put("channel_state_bytes", each.getPersistedData());
            long startDelay = 0, alignment = 0, write = 0;
            for (TaskStateStats task : each.getAllTaskStateStats()) {
                TaskStateStats.TaskStateStatsSummary summary = task.getSummaryStats();
                startDelay = Math.max(startDelay, summary.getCheckpointStartDelayStats().getMaximum());
                alignment = Math.max(alignment, summary.getAlignmentDurationStats().getMaximum());
                write = Math.max(write, summary.getAsyncCheckpointDurationStats().getMaximum());
            }
            told.put("start_delay_ms", startDelay);
            told.put("alignment_ms", alignment);
            told.put("write_ms", write);
            found.add(told);
        }
        return found;
    }
}
