import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamElement;
import org.apache.flink.streaming.runtime.streamrecord.StreamElementSerializer;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericArrayData;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.MapType;
import org.apache.flink.table.types.logical.MultisetType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeChecks;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.types.RowKind;

/**
 * Random rows by Flink's own serializers: FILE gets records, each behind its length; standard output their values.
 *
 * <p>Standard input has a line for each schema: seed, number of rows, the type. Lines that come out are JSON: a row is
 * [kind, values]; text and bytes are hexadecimal, decimals unscaled, timestamps [milliseconds, nanoseconds], floats
 * their bits; a line "[]" follows the rows of each schema.
 */
public final class RowOracle {
    private final Random random;
    private final StringBuilder told = new StringBuilder();

    private RowOracle(long seed) {
        random = new Random(seed);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (DataOutputStream file = new DataOutputStream(new FileOutputStream(arguments[0]))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ", 3);
                RowType type = (RowType) LogicalTypeParser.parse(words[2], RowOracle.class.getClassLoader());
                RowOracle oracle = new RowOracle(Long.parseLong(words[0]));
                StreamElementSerializer<RowData> serializer =
                        new StreamElementSerializer<>(new RowDataSerializer(type));
                for (int rows = Integer.parseInt(words[1]); rows > 0; rows--) {
                    oracle.told.setLength(0);
                    GenericRowData row = oracle.row(type, true);
                    output.println(oracle.told);
                    boolean hasTime = oracle.random.nextBoolean();
                    write(file, serializer, hasTime ? new StreamRecord<>(row, 7L) : new StreamRecord<>(row));
                    if (oracle.random.nextInt(8) == 0) {
                        write(file, serializer, new Watermark(rows));
                    }
                }
                file.writeInt(-1);
                output.println("[]");
            }
        }
        output.flush();
    }

    private static void write(DataOutputStream file, StreamElementSerializer<RowData> serializer, StreamElement element)
            throws Exception {
        DataOutputSerializer bytes = new DataOutputSerializer(64);
        serializer.serialize(element, bytes);
        file.writeInt(bytes.length());
        file.write(bytes.getSharedBuffer(), 0, bytes.length());
    }

    private GenericRowData row(RowType type, boolean hasKind) {
        GenericRowData row = new GenericRowData(type.getFieldCount());
        if (hasKind) {
            row.setRowKind(RowKind.fromByteValue((byte) random.nextInt(4)));
            told.append('[').append(row.getRowKind().toByteValue()).append(',');
        }
        told.append('[');
        for (int index = 0; index < type.getFieldCount(); index++) {
            comma(index);
            row.setField(index, value(type.getTypeAt(index)));
        }
        told.append(hasKind ? "]]" : "]");
        return row;
    }

    private void comma(int index) {
        if (index > 0) {
            told.append(',');
        }
    }

    private Object value(LogicalType type) {
        if (type.isNullable() && random.nextInt(4) == 0) {
            told.append("null");
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return tell(random.nextBoolean());
            case TINYINT:
                return tell((byte) random.nextInt());
            case SMALLINT:
                return tell((short) random.nextInt());
            case INTEGER:
            case DATE:
                return tell(random.nextInt());
            case TIME_WITHOUT_TIME_ZONE:
                return tell(random.nextInt(86_400_000));
            case BIGINT:
                return tell(random.nextLong());
            case FLOAT: {
                float found = random.nextInt(9) == 0 ? Float.NaN : (float) random.nextGaussian();
                told.append(Float.floatToRawIntBits(found));
                return found;
            }
            case DOUBLE: {
                double found = random.nextInt(9) == 0 ? -0.0 : random.nextGaussian();
                told.append(Double.doubleToRawLongBits(found));
                return found;
            }
            case CHAR:
            case VARCHAR: {
                String found = IntStream.range(0, length()).map(each -> character())
                        .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
                tell(found.getBytes(StandardCharsets.UTF_8));
                return StringData.fromString(found);
            }
            case BINARY:
            case VARBINARY: {
                byte[] found = new byte[length()];
                random.nextBytes(found);
                return tell(found);
            }
            case DECIMAL: {
                DecimalType decimal = (DecimalType) type;
                BigInteger bound = BigInteger.TEN.pow(1 + random.nextInt(decimal.getPrecision()));
                BigInteger found = new BigInteger(130, random).mod(bound);
                found = random.nextBoolean() ? found.negate() : found;
                told.append('"').append(found).append('"');
                return DecimalData.fromBigDecimal(
                        new BigDecimal(found, decimal.getScale()), decimal.getPrecision(), decimal.getScale());
            }
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE: {
                int precision = LogicalTypeChecks.getPrecision(type);
                long milliseconds = random.nextLong() >> (precision <= 3 ? 2 : precision <= 6 ? 12 : 22);
                int step = IntStream.range(precision, 9).reduce(1, (found, each) -> found * 10);
                int nanoseconds = precision <= 3 ? 0 : random.nextInt(1_000_000) / step * step;
                told.append('[').append(milliseconds).append(',').append(nanoseconds).append(']');
                return TimestampData.fromEpochMillis(milliseconds, nanoseconds);
            }
            case ARRAY:
                return array(((ArrayType) type).getElementType());
            case MAP:
                return map(((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET:
                return map(((MultisetType) type).getElementType(), new org.apache.flink.table.types.logical.IntType(false));
            case ROW:
                return row((RowType) type, false);
            default:
                throw new IllegalArgumentException(type.toString());
        }
    }

    private int length() {
        return random.nextInt(3) == 0 ? random.nextInt(80) : random.nextInt(12);
    }

    private int character() {
        int kind = random.nextInt(12);
        return kind == 0 ? 0x1F600 + random.nextInt(50) : kind == 1 ? 0x3B1 + random.nextInt(20) : 'a' + random.nextInt(26);
    }

    private GenericArrayData array(LogicalType element) {
        told.append('[');
        Object[] found = new Object[length()];
        for (int index = 0; index < found.length; index++) {
            comma(index);
            found[index] = value(element);
        }
        told.append(']');
        return new GenericArrayData(found);
    }

    private GenericMapData map(LogicalType key, LogicalType item) {
        Map<Object, Object> found = new LinkedHashMap<>();
        StringJoiner entries = new StringJoiner(",", "[", "]");
        for (int left = length(); left > 0; left--) {
            Object[] made = new Object[2];
            String text = apart(() -> {
                told.append('[');
                made[0] = value(key.copy(false));
                told.append(',');
                made[1] = value(item);
                told.append(']');
                return told.toString();
            });
            if (!found.containsKey(made[0])) {
                found.put(made[0], made[1]);
                entries.add(text);
            }
        }
        told.append(entries);
        return new GenericMapData(found);
    }

    private String apart(Supplier<String> teller) {
        String before = told.toString();
        told.setLength(0);
        String found = teller.get();
        told.setLength(0);
        told.append(before);
        return found;
    }

    private <T> T tell(T value) {
        told.append(value);
        return value;
    }

    private byte[] tell(byte[] bytes) {
        told.append('"').append(HexFormat.of().formatHex(bytes)).append('"');
        return bytes;
    }
}
