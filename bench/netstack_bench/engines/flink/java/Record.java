package netstack.peer;

import java.io.IOException;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.types.CopyableValue;

/** An index in eight bytes and a filler: exactly as many bytes as the cell says, without a length of its own. */
public final class Record implements CopyableValue<Record> {
    private static final int INDEX_BYTES = 8;

    long index;
    private final Cell cell = Board.current.cell;
    private final byte[] filler = new byte[cell.mostBytes() - INDEX_BYTES];

    boolean isIntact() {
        int last = fillerBytes() - 1;
        return last < 0 || filler[last] == (byte) index;
    }

    void set(long index) {
        this.index = index;
        int last = fillerBytes() - 1;
        if (last >= 0) {
            filler[last] = (byte) index;
        }
    }

    private int fillerBytes() {
        return cell.sizeOf(index) - INDEX_BYTES;
    }

    @Override
    public void write(DataOutputView out) throws IOException {
        out.writeLong(index);
        out.write(filler, 0, fillerBytes());
    }

    @Override
    public void read(DataInputView in) throws IOException {
        index = in.readLong();
        in.readFully(filler, 0, fillerBytes());
    }

    @Override
    public int getBinaryLength() {
        return cell.rows == null ? cell.recordBytes : -1;
    }

    @Override
    public void copyTo(Record target) {
        target.index = index;
        System.arraycopy(filler, 0, target.filler, 0, filler.length);
    }

    @Override
    public Record copy() {
        Record made = new Record();
        copyTo(made);
        return made;
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        long index = source.readLong();
        target.writeLong(index);
        target.write(source, cell.sizeOf(index) - INDEX_BYTES);
    }
}
