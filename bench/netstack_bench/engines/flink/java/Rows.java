package netstack.peer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/** Sizes and sinks of the rows of a file, which the records of a cell repeat: pairs of numbers, little endian. */
final class Rows {
    private static final int ANY_SINK = -1;

    final int[] sizes;
    final int largest;
    /** By row; null if records go to one sink after the other. */
    private final int[] sinks;
    /** By row: how many records later the next one of the same sink is. */
    private final int[] steps;
    private final int[] firsts;

    static Rows of(String path, int channels) {
        try {
            return new Rows(ByteBuffer.wrap(Files.readAllBytes(Path.of(path))).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer(), channels);
        } catch (IOException error) {
            throw new IllegalArgumentException("rows: " + error);
        }
    }

    private Rows(IntBuffer pairs, int channels) {
        int count = pairs.remaining() / 2;
        sizes = new int[count];
        int[] chosen = new int[count];
        for (int row = 0; row < count; row++) {
            sizes[row] = pairs.get();
            chosen[row] = pairs.get();
        }
        largest = Arrays.stream(sizes).max().getAsInt();
        boolean hasSinks = chosen[0] != ANY_SINK;
        sinks = hasSinks ? chosen : null;
        steps = hasSinks ? new int[count] : null;
        firsts = hasSinks ? new int[channels] : null;
        if (hasSinks) {
            int[] next = new int[channels];
            for (int row = 2 * count - 1; row >= 0; row--) {
                int sink = chosen[row % count];
                if (row < count) {
                    steps[row] = next[sink] - row;
                }
                next[sink] = row;
            }
            System.arraycopy(next, 0, firsts, 0, channels);
        }
    }

    int sizeOf(long index) {
        return sizes[(int) (index % sizes.length)];
    }

    boolean hasSinks() {
        return sinks != null;
    }

    int sinkOf(long index) {
        return sinks[(int) (index % sizes.length)];
    }

    /** The index of the record after this one at the same sink. */
    long after(long index) {
        return index + steps[(int) (index % sizes.length)];
    }

    boolean isFirst(long index) {
        return firsts[sinkOf(index)] == index;
    }
}
